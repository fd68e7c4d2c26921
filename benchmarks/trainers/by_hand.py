"""One of two processes that train with ``tf_keras``, started with ``TF_CONFIG``, on its half of the Parquet files."""

import time

import numpy as np

from benchmarks.common.rounds import serve_rounds
from benchmarks.peers.pyarrow_by_hand import arrays, row_groups
from benchmarks.trainers import training


def rows_of(directory, rank):
    """Return a dataset of every second row group, shuffled anew in each epoch, without an end.

    The strategy makes two of each batch. ``fit`` does not know that, and would end each epoch after half of the rows.
    """
    import tensorflow as tf

    parts = [arrays(*each) for each in row_groups(directory, rank)]
    x, y = (np.concatenate(each) for each in zip(*parts, strict=True))
    rows = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(y)).batch(training.BATCH).repeat()
    own = tf.data.Options()  # the files are divided already
    own.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return rows.prefetch(tf.data.AUTOTUNE).with_options(own)


def work(request):
    """Return what `training.train` returns."""
    times = [time.time()]
    import tensorflow as tf
    import tf_keras

    times.append(time.time())
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = training.build(tf_keras, request["model"])
    times.append(time.time())
    rows = rows_of(request["directory"], request["rank"])
    return training.train(tf_keras, model, rows, times, request["rows"] // training.BATCH)


if __name__ == "__main__":
    serve_rounds(work)

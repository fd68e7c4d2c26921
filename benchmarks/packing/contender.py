"""Contenders: a training on sequences of SQuAD's lengths, padded or packed by this package, or packed by Grain.

All train the same network, in one process, on the same sequences. Grain's contender is a process with its packages.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.common.rounds import serve_rounds
from benchmarks.packing.lengths import LONGEST, lengths

BATCH, WORDS, CLASSES, BINS = 32, 8192, 16, 64


def sequences(count):
    """Return the tokens of some sequences, and of each token the class to predict."""
    random = np.random.default_rng(1)
    tokens = [random.integers(1, WORDS, length).astype(np.int32) for length in lengths(count)]
    return [(each, (each % CLASSES).astype(np.int32)) for each in tokens]


def network():
    """Return a network of one block of attention, in which a token attends to those of its own sequence."""
    import keras

    tokens, segments = (keras.Input((LONGEST,), dtype="int32", name=name) for name in ("tokens", "segment_ids"))
    x = keras.layers.Embedding(WORDS, 64)(tokens)
    own = keras.layers.Lambda(lambda ids: ids[:, :, None] == ids[:, None, :])(segments)
    x = keras.layers.LayerNormalization()(x + keras.layers.MultiHeadAttention(2, 32)(x, x, attention_mask=own))
    model = keras.Model([tokens, segments], keras.layers.Dense(CLASSES)(keras.layers.Dense(128, "gelu")(x)))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def train(model, batches, rows):
    """Train for an epoch; return its seconds, and of some rows how many there were."""
    begin = time.perf_counter()
    model.fit(batches, epochs=1, verbose=0)
    return {"seconds": time.perf_counter() - begin, "rows": rows}


def program(directory, ctx):
    """Train on each feed, padded or packed as a file says; write what was found."""
    import tensorflow as tf

    models = {}

    def padded(x, y, weights):
        tokens = x.to_tensor(shape=(None, LONGEST))
        real = tf.sequence_mask(x.row_lengths(), LONGEST)
        features = {"tokens": tokens, "segment_ids": tf.cast(real, tf.int32)}
        return features, y.to_tensor(shape=(None, LONGEST)), tf.where(real, weights[:, None], 0.0)

    for number, feed in enumerate(ctx.feeds()):
        way = Path(directory, f"way-{number}").read_text()
        begin = time.perf_counter()
        if way == "pad":
            shapes = {"tokens": (None,), "next": (None,)}
            dataset = feed.dataset(BATCH, features="tokens", label="next", shapes=shapes).map(padded)
            rows = feed.rows
        else:
            pack = {"tokens": LONGEST, "next": LONGEST}
            dataset = feed.dataset(BATCH, features="tokens", label="next", pack=pack)
            rows = sum(
                int((batch[2][:, 0] > 0).sum())
                for batch in feed.batches(BATCH, features="tokens", label="next", pack=pack)
            )
            dataset = dataset.map(lambda x, y, w: ({"tokens": x["tokens"], "segment_ids": x["segment_ids"]}, y, w))
        ready = time.perf_counter() - begin
        found = train(models.setdefault(way, network()), dataset, rows)
        Path(directory, f"found-{number}").write_text(json.dumps({**found, "ready": ready}))


def ours():
    """Serve the rounds of this package, in a cluster of one worker."""
    import pandas as pd

    import tensorflowonspark as tfos
    from benchmarks.common.spark import two_slots

    with two_slots() as spark, tempfile.TemporaryDirectory() as directory:
        frames = {}

        def frame(count):
            if count not in frames:
                rows = pd.DataFrame(sequences(count), columns=["tokens", "next"])
                frames[count] = spark.createDataFrame(rows, "tokens array<int>, next array<int>").repartition(4).cache()
                frames[count].count()
            return frames[count]

        with tfos.Cluster(spark, program, directory, num_workers=1) as cluster:
            fed = 0

            def one_round(request):
                nonlocal fed
                Path(directory, f"way-{fed}").write_text(request["way"])
                cluster.train(frame(request["sequences"]))
                fed += 1
                return json.loads(Path(directory, f"found-{fed - 1}").read_text())

            serve_rounds(one_round)


def grain():
    """Serve the rounds of Grain, with plain Keras; the sequences are in memory."""
    sys.path.append(os.environ["GRAIN_PACKAGES"])
    from grain import MapDataset
    from grain.experimental import FirstFitPackIterDataset

    model = network()

    def one_round(request):
        begin = time.perf_counter()
        rows = [{"tokens": tokens, "next": classes} for tokens, classes in sequences(request["sequences"])]
        source = MapDataset.source(rows).shuffle(seed=1).to_iter_dataset()
        lengths_of = {"tokens": LONGEST, "next": LONGEST}
        packed = FirstFitPackIterDataset(source, length_struct=lengths_of, num_packing_bins=BINS)
        ready, count = time.perf_counter() - begin, 0

        def batches():
            nonlocal count
            for each in packed.batch(BATCH, drop_remainder=False):
                segments = each["tokens_segment_ids"]
                count += len(segments)
                features = {"tokens": each["tokens"], "segment_ids": segments}
                yield features, each["next"], (segments > 0).astype("float32")

        found = train(model, batches(), 0)
        return {**found, "rows": count, "ready": ready}

    serve_rounds(one_round)


if __name__ == "__main__":
    {"ours": ours, "grain": grain}[sys.argv[1]]()

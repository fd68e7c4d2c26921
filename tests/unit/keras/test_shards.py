"""One worker's share of a feed, in a strategy of several workers."""

from itertools import accumulate

import numpy as np
import pytest
import tensorflow as tf

from tensorflowonspark.keras.shards import _divided, is_shard, mark_shard


@pytest.mark.parametrize("sizes", [[4, 4, 3], [3, 2, 3], [11, 11, 1], [8, 8, 8]])
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_each_batch_is_divided_among_the_gpus_of_a_worker(sizes, replicas):
    """No replica is given rows of the next one: the worker would take fewer steps than the others."""
    rows = np.split(np.arange(sum(sizes)), list(accumulate(sizes))[:-1])
    data = tf.data.Dataset.from_generator(lambda: iter(rows), output_signature=tf.TensorSpec((None,), tf.int64))
    parts = [part.numpy() for part in _divided(mark_shard(data), replicas)]
    assert len(parts) == len(sizes) * replicas
    for step, batch in enumerate(rows):
        np.testing.assert_array_equal(np.concatenate(parts[step * replicas : (step + 1) * replicas]), batch)


def test_the_mark_of_a_share_survives_transformations():
    data = tf.data.Dataset.range(4)
    assert not is_shard(data)
    assert is_shard(mark_shard(data).map(lambda x: x + 1).prefetch(2))

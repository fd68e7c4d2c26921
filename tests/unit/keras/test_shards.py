"""One worker's share of a feed, in a strategy of several workers."""

from types import SimpleNamespace

import pytest
import tensorflow as tf

from tensorflowonspark.keras.feed_tracking import drops_rows, has_equal_steps, note_passes, pass_length
from tensorflowonspark.keras.shards import _without_tuning, is_shard, mark_shard
from tests.support.commands import run_python


def test_the_mark_of_a_share_survives_transformations():
    data = tf.data.Dataset.range(4)
    assert not is_shard(data)
    assert is_shard(mark_shard(data).map(lambda x: x + 1).prefetch(2))


class _Shaped(tf.experimental.BatchableExtensionType):
    shape: tf.Tensor


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda data: data.batch(4), False),
        (lambda data: data.batch(4, drop_remainder=True), True),
        (lambda data: data.batch(4, drop_remainder=True, num_parallel_calls=2).prefetch(1), True),
        (lambda data: data.batch(4, drop_remainder=True).map(lambda x: x[:2]), True),
        (lambda data: data.padded_batch(4), False),
        (lambda data: data.padded_batch(4, drop_remainder=True), True),
        (lambda data: data.ragged_batch(4, drop_remainder=True), True),
        (lambda data: data.batch(8).rebatch(4), False),
        (lambda data: data.batch(8).rebatch(4, drop_remainder=True), True),
        (lambda data: data.map(lambda x: tf.fill([3], x)).batch(2).unbatch(), False),
        (lambda data: data.bucket_by_sequence_length(lambda x: 1, [4], [2, 2]), False),
        (lambda data: data.window(4, drop_remainder=True).flat_map(lambda each: each.batch(4)), True),
        (lambda data: data.map(lambda x: tf.fill([3], x)), False),
        (lambda data: data.map(lambda x: tf.py_function(abs, [x], tf.int32)).batch(4), False),
        (lambda data: data.map(lambda x: _Shaped(x)).batch(4), False),
        (lambda data: data.map(lambda x: (x, None)).batch(4, drop_remainder=True), True),
        (lambda data: data.filter(lambda x: x > 1), True),
        (lambda data: data.batch(2).take(1), True),
        (lambda data: tf.data.Dataset.zip(data, data.batch(2, drop_remainder=True)), True),
    ],
)
def test_datasets_that_are_meant_to_drop_rows_are_known(make, expected):
    data = tf.data.Dataset.from_tensor_slices(tf.range(10))
    assert drops_rows(make(data)) is expected


@pytest.mark.parametrize(("chosen", "expected"), [(None, False), (True, True), (False, False)])
def test_what_a_strategy_distributes_is_not_tuned_unless_the_program_asks_for_it(chosen, expected):
    """The end of an iterator would wait for the thread that tunes it, and all workers for this one."""
    data = tf.data.Dataset.range(4)
    if chosen is not None:
        options = tf.data.Options()
        options.autotune.enabled = chosen
        data = data.with_options(options)
    assert _without_tuning(data).options().autotune.enabled is expected
    assert list(_without_tuning(data).as_numpy_iterator()) == [0, 1, 2, 3]


_DEVICES = """
from tensorflowonspark.keras import hooks

hooks.install()
import tensorflow as tf

original, tuned = tf.data.Dataset.prefetch, []


def prefetch(dataset, *args, **options):
    found = original(dataset, *args, **options)
    tuned.append(found.options().autotune.enabled)
    return found


tf.data.Dataset.prefetch = prefetch
strategy = tf.distribute.MirroredStrategy(["CPU:0"])
for _ in strategy.experimental_distribute_dataset(tf.data.Dataset.range(4).prefetch(1)):
    pass
print(tuned)
"""


@pytest.mark.slow
def test_what_a_strategy_puts_behind_a_dataset_is_not_tuned_either():
    assert run_python(_DEVICES).strip() == "[None, False]"


def test_what_keeps_the_length_of_a_dataset_knows_its_passes():
    data = tf.data.Dataset.range(4)
    assert not has_equal_steps(data)
    passes = SimpleNamespace(arrive=True, equal_steps=True)
    note_passes(data, passes)
    kept = data.map(lambda x: x + 1).map(lambda x: x, num_parallel_calls=tf.data.AUTOTUNE)
    kept = _without_tuning(mark_shard(kept).prefetch(2))
    assert pass_length(kept) is passes
    assert has_equal_steps(kept)
    assert pass_length(kept.batch(2)) is None
    assert not has_equal_steps(data.take(2))

"""The time in collectives, noted by TensorFlow's graph."""

import time

import pytest
import tensorflow as tf

from tensorflowonspark.keras.waiting import _Collectives


def sleep(seconds):
    """Return a function that builds an operation which takes some time, as a collective does; it has the time taken."""

    def slow(value):
        begin = time.monotonic()
        time.sleep(seconds)
        build.taken += time.monotonic() - begin
        return value

    def build(value):
        return lambda: tf.reshape(tf.numpy_function(slow, [value], tf.float32), value.shape)

    build.taken = 0.0
    return build


def timed(function, *arguments):
    """Return the seconds that a call takes."""
    begin = time.monotonic()
    function(*arguments)
    return time.monotonic() - begin


@pytest.fixture
def collectives():
    tf.raw_ops.DestroyResourceOp(
        resource=tf.raw_ops.VarHandleOp(dtype=tf.float64, shape=[3], shared_name="tensorflowonspark_waits"),
        ignore_lookup_error=True,
    )
    return _Collectives()


@pytest.mark.deep
def test_a_collective_begins_with_its_inputs_and_ends_with_its_outputs(collectives):
    compute, exchange = sleep(0.2), sleep(0.3)

    @tf.function
    def step(value):
        gradient = compute(value)()
        return collectives.measured([gradient], exchange(gradient)) + 1.0

    assert collectives.read() is None
    assert step(tf.constant(1.0)).numpy() == 2.0  # traces
    before, compute.taken, exchange.taken = collectives.read(), 0.0, 0.0
    whole = sum(timed(step, tf.constant(1.0)) for _ in range(2))
    assert exchange.taken <= collectives.read() - before <= whole - compute.taken


def test_the_time_of_collectives_that_wait_for_each_other_counts_once(collectives):
    exchange = sleep(0.3)

    @tf.function
    def step(value):
        first = collectives.measured([value], exchange(value))
        with tf.control_dependencies([first]):  # as by TensorFlow's ordering token: the inputs are ready before
            return collectives.measured([value], exchange(value))

    step(tf.constant(1.0))
    before, exchange.taken = collectives.read(), 0.0
    whole = timed(step, tf.constant(1.0))
    assert exchange.taken <= collectives.read() - before <= whole


def test_a_collective_that_has_not_ended_counts_so_far(collectives):
    counted = []

    def look(value):
        begin = time.monotonic()
        time.sleep(0.3)
        counted.append((time.monotonic() - begin, collectives.read()))
        return value

    @tf.function
    def step(value):
        build = lambda: tf.numpy_function(look, [value], tf.float32)  # noqa: E731
        return collectives.measured([value], build)

    whole = timed(step, tf.constant(1.0))
    assert counted[0][0] <= counted[0][1] <= whole


def test_collectives_of_a_batch_count_as_one(collectives):
    exchange = sleep(0.2)

    def batch(value):
        return lambda: [collectives.measured([value], exchange(value)) for _ in range(2)]

    @tf.function
    def step(value):
        return collectives.measured([value], batch(value))

    whole = timed(step, tf.constant(1.0))
    assert exchange.taken / 2 <= collectives.read() <= whole


def test_eager_collectives_are_measured_too(collectives):
    value, exchange = tf.constant(1.0), sleep(0.2)
    whole = timed(lambda: collectives.measured([value], exchange(value)))
    assert exchange.taken <= collectives.read() <= whole


def test_the_time_in_collectives_of_gpus_is_unknown(collectives, monkeypatch):
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [f"/device:{kind}:0"])
    value = tf.constant(1.0)
    assert collectives.measured([value], lambda: value) is value
    assert collectives.read() is None

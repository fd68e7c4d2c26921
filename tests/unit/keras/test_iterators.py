"""The end of a strategy's iterators."""

import gc
import threading

import pytest

from tensorflowonspark.keras import iterators


@pytest.mark.timeout(200)
@pytest.mark.parametrize("kind", ["of a strategy", pytest.param("garbage", marks=pytest.mark.slow)])
def test_no_step_waits_for_the_end_of_an_iterator(monkeypatch, kind):
    import tensorflow as tf
    from tensorflow.python.data.ops import iterator_ops, multi_device_iterator_ops

    plain, of_strategy = iterator_ops.OwnedIterator, multi_device_iterator_ops.OwnedMultiDeviceIterator
    monkeypatch.setattr(plain, "__init__", plain.__init__)
    monkeypatch.setattr(of_strategy, "__init__", of_strategy.__init__)
    iterators.destroy_garbage_in_threads(iterator_ops)
    iterators.destroy_in_threads(multi_device_iterator_ops)
    may_end, ended, held_up = threading.Event(), threading.Event(), threading.Event()

    def endless():  # its end is a part of its iterator's end
        try:
            while True:
                yield 1
        finally:
            if not may_end.wait(20):
                held_up.set()
            ended.set()

    dataset = tf.data.Dataset.from_generator(endless, output_signature=tf.TensorSpec((), tf.int32))
    if kind == "garbage":
        iterator = iter(dataset)
        iterator.itself = iterator
    else:
        iterator = of_strategy(dataset, ["/cpu:0"], source_device="/cpu:0")
    assert tf.nest.flatten(iterator.get_next())[0].numpy() == 1
    del iterator
    gc.collect()
    assert not ended.is_set()
    may_end.set()
    assert ended.wait(60)
    assert not held_up.is_set()
    for thread in threading.enumerate():  # else the interpreter's end could meet one at work
        if thread.name == "iterator":
            thread.join(100)
    gc.callbacks.remove(iterators._note_collection)

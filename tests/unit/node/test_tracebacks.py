"""The traceback of a program's error: the program's own frames."""

import keras
import numpy as np
import pytest

from tensorflowonspark import declarations
from tensorflowonspark.columns import schema
from tensorflowonspark.node.tracebacks import program_traceback


def call(function):
    """Return the traceback of the error that a function raises where the package calls it."""

    @declarations.takes()
    def ours():
        function()

    try:
        ours()
    except BaseException as error:
        return program_traceback(error.with_traceback(error.__traceback__.tb_next))
    raise AssertionError("nothing was raised")


def fit():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0)


def test_frames_of_keras_and_of_this_package_are_left_out():
    found = call(fit)
    assert "model.fit(np.ones" in found.traceback
    assert "/keras/" not in found.traceback
    assert "declarations.py" not in found.traceback
    assert "of Keras, TensorFlow and tensorflowonspark left out" in found.traceback
    assert "/keras/src/" in found.all_frames
    assert "declarations.py" in found.all_frames


def test_all_frames_are_shown_where_keras_shows_them():
    keras.config.disable_traceback_filtering()
    try:
        found = call(fit)
    finally:
        keras.config.enable_traceback_filtering()
    assert "/keras/src/" in found.traceback
    assert not found.all_frames


def test_frames_before_the_programs_first_one_are_not_counted():
    def program():
        raise LookupError("nothing here")

    found = call(program)
    assert "nothing here" in found.traceback
    assert "tensorflowonspark" not in found.traceback.replace(__file__, "")
    assert not found.all_frames


def without_program(function, *arguments):
    """Return the traceback of the error of a function of the package, without the frames of this test."""
    try:
        function(*arguments)
    except Exception as error:
        return program_traceback(error.with_traceback(error.__traceback__.tb_next))
    raise AssertionError("nothing was raised")


def test_an_error_of_this_package_alone_has_no_traceback():
    found = without_program(schema.arrow_schema, 1)
    assert found.traceback == ""
    assert "schema.py" in found.all_frames


def test_another_error_without_a_frame_of_the_program_has_its_text_and_where_the_frames_are():
    found = without_program(schema.quoted, 1)
    assert found.traceback.startswith("AttributeError: 'int' object")
    assert "(1 frame of Keras, TensorFlow and tensorflowonspark left out: the node's file in log_dir" in found.traceback
    assert "schema.py" in found.all_frames


def test_frames_in_the_text_of_tensorflows_error_are_left_out_as_well():
    import tensorflow as tf

    def loss(true, given):
        with tf.control_dependencies([tf.debugging.assert_less(true, 0.5)]):
            return tf.reduce_mean(tf.square(true - given), -1)

    def program():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", loss)
        model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)

    found = call(program)
    assert "/keras/src/" in found.all_frames.partition("Graph execution error")[2]
    assert "/keras/" not in found.traceback
    assert ", in loss" in found.traceback
    assert "Condition x < y did not hold" in found.traceback


def test_causes_are_cut_as_well():
    def program():
        try:
            fit()
        except Exception as error:
            raise RuntimeError("no training") from error

    text = call(program).traceback
    assert "model.fit(np.ones" in text
    assert "direct cause" in text
    assert "/keras/" not in text


@pytest.mark.parametrize("text", ["x" * 10**6, "\ud800"], ids=["long", "lone surrogate"])
def test_texts_that_cannot_be_sent(text):
    def program():
        raise ValueError(text)

    found = call(program).traceback
    assert len(found) < 40_000
    found.encode()

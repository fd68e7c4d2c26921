"""The error of a step whose batch has other rows than the inputs of its model state."""

import keras
import pytest
import tensorflow as tf

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.step_functions import _explaining_size


@pytest.mark.parametrize(
    ("layer", "rows", "expected"),
    [
        (lambda: keras.layers.LSTM(1, stateful=True), 2, SpecError),
        (lambda: keras.layers.LSTM(1, stateful=True), 4, LookupError),
        (lambda: keras.layers.LSTM(1), 2, LookupError),  # which takes any number: the error has another reason
    ],
)
def test_the_size_is_the_reason_where_a_layer_keeps_a_state_for_each_row(layer, rows, expected):
    model = keras.Sequential([keras.Input((3, 1), batch_size=4), layer()])
    with pytest.raises(expected), _explaining_size(model, (tf.zeros((rows, 3, 1)), tf.zeros(rows))):
        raise LookupError("the program's own")

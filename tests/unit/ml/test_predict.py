"""A model's results for some rows, computed in several calls, and their meaning."""

import keras
import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from tensorflowonspark.columns import to_batch
from tensorflowonspark.ml.distribution import _by_name
from tensorflowonspark.ml.inputs import TensorInfo
from tensorflowonspark.ml.outputs import Columns, Meaning, OutputInfo, meaning_of, result_types
from tensorflowonspark.ml.predict import call_in_pieces

LENGTHS = np.array([1, 2, 2, 0, 3, 3, 3])


@pytest.mark.parametrize("rows_per_call", [1, 2, 3, 7])
@pytest.mark.parametrize(
    ("model", "padded"),
    [
        (lambda lengths: tf.ragged.range(lengths), False),
        (lambda lengths: [list(range(each)) for each in lengths], False),
        (lambda lengths: np.array([np.arange(each) for each in lengths] + [None], object)[:-1], False),
        (lambda lengths: tf.ragged.range(lengths).to_tensor(), True),  # as wide as the longest row of the call
        (lambda lengths: tf.ragged.range(lengths).to_sparse(), True),
    ],
    ids=["ragged", "lists", "objects", "dense", "sparse"],
)
def test_rows_of_different_lengths_come_from_any_number_of_calls(rows_per_call, model, padded):
    batch = pa.record_batch({"n": LENGTHS})
    found = call_in_pieces(lambda lengths: _by_name({"y": model(lengths)}, []), LENGTHS, batch, rows_per_call)
    column = to_batch(found, pa.schema({"y": pa.list_(pa.int32())}), len(LENGTHS)).column("y").to_pylist()
    for row, length in enumerate(LENGTHS):
        first = row // rows_per_call * rows_per_call
        width = max(LENGTHS[first : first + rows_per_call]) if padded else length
        assert column[row] == [*range(length)] + [0] * (width - length)


@pytest.mark.parametrize(
    ("loss", "activation", "size", "meaning", "logits"),
    [
        ("categorical_crossentropy", "softmax", 3, Meaning.CLASSES, False),
        ("CategoricalCrossentropy", "softmax", 3, Meaning.CLASSES, False),
        (keras.losses.sparse_categorical_crossentropy, "softmax", 3, Meaning.CLASSES, False),
        (keras.losses.CategoricalFocalCrossentropy(from_logits=True), "linear", 3, Meaning.CLASSES, True),
        ("bce", "sigmoid", 1, Meaning.BINARY, False),
        (keras.losses.BinaryFocalCrossentropy(), "sigmoid", 1, Meaning.BINARY, False),
        (None, "softmax", 3, Meaning.CLASSES, False),
        ("categorical_hinge", "softmax", 3, Meaning.CLASSES, False),
        ("my_binary_loss", "sigmoid", 1, Meaning.BINARY, False),
        ("my_binary_loss", "linear", 1, Meaning.VALUES, False),
        ("categorical_hinge", "linear", 3, Meaning.VALUES, False),
        (keras.losses.CategoricalHinge(), "linear", 3, Meaning.VALUES, False),
        (keras.losses.categorical_hinge, "linear", 3, Meaning.VALUES, False),
        ("hinge", "tanh", 1, Meaning.VALUES, False),
        ("mse", "sigmoid", 1, Meaning.VALUES, False),
    ],
)
def test_only_losses_of_probabilities_are_of_classes(loss, activation, size, meaning, logits):
    assert meaning_of(loss, activation, TensorInfo("y", (size,), "float32")) == (meaning, logits)


@pytest.mark.parametrize(
    ("dtype", "shape", "kind"),
    [
        ("float32", (1,), "double"),
        ("int64", (), "double"),
        ("string", (), "binary"),
        ("string", (1,), "binary"),
        ("str", (), "string"),
        ("string", (2,), "array<binary>"),
    ],
)
def test_types_of_predictions(dtype, shape, kind):
    (type_,) = result_types([OutputInfo(TensorInfo("y", shape, dtype))], Columns()).values()
    assert type_.simpleString() == kind

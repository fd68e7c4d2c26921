"""A model's results for some rows, computed in several calls, and their meaning."""

import keras
import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from pyspark.ml.linalg import Vectors
from pyspark.sql import Row

import tensorflowonspark as tfos
from tensorflowonspark.columns import to_batch
from tensorflowonspark.keras.structure import TensorInfo
from tensorflowonspark.ml import KerasModel
from tensorflowonspark.ml.calls import _by_name
from tensorflowonspark.ml.features import TakenColumns, call_in_pieces, features_of
from tensorflowonspark.ml.outputs import Columns, Meaning, OutputInfo, meaning_of, result_types

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


LISTS = pa.array([[1.0], [1.0, 2.0]])
UNSUITABLE = {
    "a null": (pa.array([1.0, None]), {}, True),
    "a null in an array": (pa.array([[1.0, None]]), {}, True),
    "another length than declared": (LISTS, {"shapes": {"x": (1,)}}, True),
    "a value that the dtype can't hold": (pa.array([1, 300]), {"dtypes": {"x": "uint8"}}, True),
    "lengths of which none is declared": (LISTS, {}, False),
    "a shape that no row has": (pa.array([[1.0]]), {"shapes": {"x": (2,)}}, False),
    "a dtype that there is not": (pa.array([1.0]), {"dtypes": {"x": "flot"}}, False),
    "strings to be numbers": (pa.array(["a"]), {"dtypes": {"x": "float32"}}, False),
    "a fill of another kind": (pa.array([1.0, None]), {"fill": {"x": "none"}}, False),
    "a type without tensors": (pa.array([{"a": 1}], pa.map_(pa.string(), pa.int8())), {}, False),
}


@pytest.mark.parametrize("case", UNSUITABLE)
def test_skipping_rows_is_proposed_where_it_helps(case):
    values, options, helps = UNSUITABLE[case]
    by_column = {"shapes": {}, "dtypes": {}, "fill": {}} | options
    taken = TakenColumns(("x",), by_column, advice="Declare it", skipping="Skip such rows")
    with pytest.raises(tfos.FeedError) as caught:
        features_of(taken, pa.record_batch({"x": values}))
    assert str(caught.value).endswith("Skip such rows" if helps else "Declare it")
    assert caught.value.skippable == helps


LARGE = [2**53 + 1, -(2**63), 2**63 - 1]


@pytest.mark.deep
@pytest.mark.parametrize("value", LARGE)
def test_an_integer_that_no_double_holds_comes_back_exactly(value):
    same = KerasModel.from_function(lambda x: x, {"y": ("int64", ())})
    assert same.predict(value) == value
    number = keras.Input((1,), dtype="int64")
    model = KerasModel.from_keras(keras.Model(number, keras.layers.Reshape((1,))(number)))
    assert model.predict(value) == value
    two = KerasModel.from_function(lambda x: {"a": x, "b": x}, {"a": ("int64", ()), "b": ("int64", (1,))})
    assert two.predict(value) == {"a": value, "b": value}
    unsigned = KerasModel.from_function(lambda x: x.astype(np.uint64), {"y": ("uint64", ())})
    if value >= 0:
        assert unsigned.predict(value) == value
        return
    with pytest.raises(tfos.FeedError, match=r"'prediction'.*first: 9223372036854775808.*those from 2\^63 as text"):
        unsigned.predict(value)


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
        ("int32", (), "double"),
        ("uint32", (1,), "double"),
        ("bool", (), "double"),
        ("int64", (), "bigint"),
        ("uint64", (1,), "bigint"),
        ("string", (), "binary"),
        ("string", (1,), "binary"),
        ("str", (), "string"),
        ("string", (2,), "array<binary>"),
    ],
)
def test_types_of_predictions(dtype, shape, kind):
    (type_,) = result_types([OutputInfo(TensorInfo("y", shape, dtype))], Columns()).values()
    assert type_.simpleString() == kind


def classifier(size=3, activation="softmax", loss=None):
    """Return a stage whose outputs are its inputs, passed through the activation."""
    model = keras.Sequential([keras.Input((size,)), keras.layers.Dense(size, activation, use_bias=False)])
    model.set_weights([np.eye(size)])
    model.compile("sgd", loss)
    return KerasModel.from_keras(model)


LOGITS = np.log([0.5, 0.3, 0.2])


@pytest.mark.parametrize(
    "row",
    [
        LOGITS, LOGITS.tolist(), Vectors.dense(LOGITS), Vectors.sparse(3, list(enumerate(LOGITS))),
        {"features": LOGITS, "id": 1}, Row(features=Vectors.dense(LOGITS), id=1),
    ],
)  # fmt: skip
def test_one_row_in_this_process(row):
    stage = classifier()
    assert (stage.numClasses, stage.predict(row)) == (3, 0.0)
    assert stage.predictProbability(row).toArray() == pytest.approx([0.5, 0.3, 0.2])


@pytest.mark.parametrize(
    ("thresholds", "expected"),
    [
        (None, 0.0),
        ([1, 1, 1], 0.0),
        ([0.5, 0.2, 0.5], 1.0),
        ([0.5, 0.5, 0.0], 2.0),  # as in Spark ML: of any probability
    ],
)
def test_thresholds_choose_the_class_as_in_spark_ml(thresholds, expected):
    stage = classifier()
    assert stage.setThresholds(thresholds).predict(LOGITS) == expected
    logits = classifier(activation="linear", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    assert logits.setThresholds(thresholds).predict(LOGITS) == expected
    assert logits.getThresholds() == thresholds


def test_thresholds_of_two_classes_of_one_number():
    stage = classifier(1, "sigmoid")
    assert (stage.numClasses, stage.predict([-1.0])) == (2, 0.0)  # probability 0.27
    assert stage.setThresholds([0.8, 0.2]).predict([-1.0]) == 1.0
    assert stage.setThresholds([0.7, 0.3]).predict([-1.0]) == 0.0


@pytest.mark.parametrize(
    ("act", "told"),
    [
        (lambda: classifier().setThresholds([0.0, 0.0, 0.0]), r"thresholds=\[0.0, 0.0, 0.0\]: expected a number"),
        (lambda: classifier().setThresholds([1, -1, 1]), "expected a number above 0 for each class, but for one that"),
        (lambda: classifier().setThresholds([0.5, 0.5]).predict(LOGITS), r"=\[0.5, 0.5\]: expected 3 numbers"),
        (lambda: classifier(3, "linear").setThresholds([1, 1, 1]).predict(LOGITS), "thresholds=.* needs a model with"),
        (lambda: classifier(3, "linear").numClasses, "numClasses needs a model with one .* and this one has 0"),
        (lambda: classifier(3, "linear").predictProbability(LOGITS), "predictProbability needs a model with"),
        (lambda: classifier().predict({"feature": LOGITS}), r"the row has no column 'features'; it has \['feature'\]"),
        (lambda: classifier().predict([1, "a"]), "column 'features' holds .1, 'a'., of which no array can be made"),
        (lambda: classifier().predict(["a"] * 3), "column 'features' holds strings .*takes float32: index it"),
        (lambda: classifier().setFeaturesCols(["a", "b", "c"]).predict(LOGITS), "takes the columns .'a', 'b', 'c"),
    ],
)  # fmt: skip
def test_what_a_model_can_not_predict_is_one_error(act, told):
    with pytest.raises(tfos.SpecError, match=told):
        act()


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ([1.0, 2.0], r"column 'features' holds 2 values in each row.*shapes=.'features': \(3,\)"),
        (None, "column 'features' holds 1 null"),
        ([1.0, None, 2.0], r"holds 1 null, the first in row 0 of partition 0, item \[1\]"),
    ],
)
def test_a_row_that_does_not_fit_is_named(row, told):
    with pytest.raises(tfos.FeedError, match=told):
        classifier().predict(row)


def test_one_row_of_several_columns_and_outputs():
    left, right = keras.Input((1,), name="left"), keras.Input((1,), name="right")
    outputs = {"sum": keras.layers.Add()([left, right]), "both": keras.layers.Concatenate()([left, right])}
    stage = KerasModel.from_keras(keras.Model([left, right], outputs), featuresCols=["left", "right"])
    assert stage.predict(Row(left=1.0, right=2)) == {"sum": 3.0, "both": [1.0, 2.0]}
    together = KerasModel.from_function(lambda x: x["a"] + x["b"], {"c": ("float32", ())}, featuresCols=["a", "b"])
    assert together.predict({"a": 1.5, "b": 2.0}) == 3.5
    assert together.layer_outputs([]).predict({"a": 1.5, "b": 2.0}) == 3.5

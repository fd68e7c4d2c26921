"""A model against the columns that it is to train on, and what it is compiled with."""

import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from pyspark.ml.linalg import VectorUDT
from pyspark.sql.types import ArrayType, BooleanType, DoubleType, IntegerType, StringType, StructField, StructType

import tensorflowonspark as tfos
from tensorflowonspark.keras.structure import TensorInfo
from tensorflowonspark.ml.checks import (
    ColumnForm,
    LabelCheck,
    check_features,
    checked_labels,
    forms_of,
    forms_of_tensors,
    label_checks,
)
from tensorflowonspark.ml.compilation import check_compilation, check_names
from tensorflowonspark.ml.inputs import plain_refusals
from tensorflowonspark.ml.nans import NanRows
from tests.support.structured import structured

pytestmark = pytest.mark.timeout(120)

ONE, VECTOR, UNKNOWN = ColumnForm(()), ColumnForm((3,)), ColumnForm(None)


def refused(told):
    return pytest.raises(tfos.SpecError, match=told)


def taken(*shape, name="x"):
    return TensorInfo(name, shape, "float32")


@pytest.mark.parametrize(
    ("inputs", "forms", "told"),
    [
        ([taken(3)], {"a": ONE, "b": ONE}, "input takes 3 numbers in each row, and the columns 'a', 'b' have 2: give"),
        ([taken(3)], {"a": ONE, "b": VECTOR}, "the columns 'a', 'b' have 4"),
        ([taken(3)], {"a": ONE, "b": UNKNOWN}, None),
        ([taken(3)], {"a": ONE, "b": ONE, "c": ONE}, None),
        ([taken(None)], {"a": ONE, "b": ONE}, None),
        ([taken(3)], {"a": ONE}, "takes 3 numbers in each row, and the column 'a' has one number"),
        ([taken(1)], {"a": ONE}, None),
        ([taken()], {"a": ONE}, None),
        ([taken(2)], {"a": VECTOR}, "takes 2 numbers in each row, and the column 'a' has 3 numbers"),
        ([taken(3, 1)], {"a": VECTOR}, None),  # Keras adds the last dimension
        ([taken(3)], {"a": UNKNOWN}, None),
        ([taken(2, name="u"), taken(3, name="v")], {"v": VECTOR, "u": VECTOR}, "input 'u' takes 2 numbers"),
        ([], {"a": ONE, "b": ONE}, None),
    ],
)  # fmt: skip
def test_widths_of_features(inputs, forms, told):
    if told is None:
        check_features(inputs, forms)
        return
    with refused(told):
        check_features(inputs, forms)


def network(units, library=keras):
    return library.Sequential([library.Input((2,)), library.layers.Dense(units)])


SPARSE, ONE_HOT, BINARY = "sparse_categorical_crossentropy", "categorical_crossentropy", "binary_crossentropy"


@pytest.mark.parametrize("library", [keras, tf_keras])
@pytest.mark.parametrize(
    ("loss", "units", "form", "told"),
    [
        (SPARSE, 3, ONE, None),
        (SPARSE, 3, VECTOR, "'y' holds 3 numbers in each row, and sparse_.* takes one, the class: loss='categorical_"),
        (ONE_HOT, 3, VECTOR, None),
        (ONE_HOT, 3, UNKNOWN, None),
        (ONE_HOT, 3, ColumnForm((), True), "'y' holds whole numbers: take loss='sparse_categorical_crossentropy'; cat"),
        (ONE_HOT, 3, ONE, "label column 'y' holds one number in each row: take loss='sparse_categorical"),
        (ONE_HOT, 4, VECTOR, "'y' holds 3 numbers in each row, and the model's output has 4 units"),
        (BINARY, 1, ONE, None),
        (BINARY, 3, VECTOR, None),
        (BINARY, 10, ONE, "has 10 units, each of which binary_.* would compare .* loss='sparse_categorical_crossent"),
        ("mse", 1, ONE, None),
        ("mean_absolute_error", 3, VECTOR, None),
        ("mse", 2, ONE, "has 2 units, each of which mean_squared_error would compare with it: give the model one unit"),
        (lambda library: library.losses.MeanSquaredError(), 2, ONE, "each of which mean_squared_error would compare"),
        (lambda library: library.losses.CategoricalCrossentropy(), 2, ONE, "take loss='sparse_categorical"),
        (lambda _: lambda y, x: x - y, 2, ONE, None),  # which may be meant so
        ("of_the_user", 2, ONE, None),
        (None, 2, ONE, None),
    ],
)  # fmt: skip
def test_labels_by_loss_and_units(library, loss, units, form, told):
    given = loss(library) if callable(loss) else loss
    checks = label_checks(network(units, library), given, ["y"])
    if told is None:
        for each in checks.values():
            each.check(form)
        return
    (check,) = checks.values()
    with refused(told):
        check.check(form)


def test_each_output_has_the_check_of_its_own_loss_and_column():
    model = structured(kind="nested")
    loss = {"z": "mse", "a": [BINARY, "mae"]}
    found = {name: (each.column, each.loss) for name, each in label_checks(model, loss, ["p", "q", "r"]).items()}
    assert found == {"z": ("p", "mean_squared_error"), "a_0": ("q", BINARY), "a_1": ("r", "mean_absolute_error")}
    by_name = label_checks(model, "mse", ["a_1", "z", "a_0"])
    assert {name: each.column for name, each in by_name.items()} == {name: name for name in ("z", "a_0", "a_1")}


@pytest.mark.deep
@pytest.mark.parametrize(
    ("loss", "units", "ignored", "labels", "told"),
    [
        (SPARSE, 3, None, [0, 1, 2], None),
        (SPARSE, 3, None, [0.0, 2.0], None),
        (SPARSE, 3, None, [1, 3, -1], r"no class, and the model's output has 3 units: .* 0 to 2; .* labels: 3, -1$"),
        (SPARSE, 3, None, [0.5], r"such labels: 0.5$"),
        (SPARSE, 3, None, [float("nan")], r"such labels: nan$"),
        (SPARSE, 3, -1, [0, -1], None),
        (SPARSE, 2, None, [2], r"has 2 units.*first such labels: 2$"),
        (BINARY, 1, None, [0, 1], None),
        (BINARY, 1, None, [0.1, 0.9], None),
        (BINARY, 1, None, [-1, 1], r"labels outside of 0 to 1, and binary_crossentropy takes these alone; .* -1$"),
        ("mean_squared_error", 1, None, [-7.0], None),
    ],
)  # fmt: skip
def test_values_of_labels(loss, units, ignored, labels, told):
    checks = {"out": LabelCheck("y", taken(units, name="out"), loss, ignored=ignored)}
    for given in (labels, {"out": labels, "other": labels}):
        tensors = tf.nest.map_structure(tf.constant, given) if isinstance(given, dict) else tf.constant(given)
        data = tf.data.Dataset.from_tensors(tensors).map(lambda y: checked_labels(y, checks))
        if told is None:
            assert len(list(data)) == 1
            continue
        with plain_refusals(), pytest.raises(tf.errors.InvalidArgumentError):
            list(data)
        with pytest.raises(tfos.FeedError, match=told), plain_refusals():
            list(data)


def test_forms_of_columns():
    fields = {"i": IntegerType(), "d": DoubleType(), "b": BooleanType(), "s": StringType(),
              "a": ArrayType(DoubleType()), "v": VectorUDT()}  # fmt: skip
    schema = StructType([StructField(name, kind) for name, kind in fields.items()])
    assert forms_of(schema, list(fields)) == {
        "i": ColumnForm((), True), "d": ONE, "b": ColumnForm((), True), "s": UNKNOWN, "a": UNKNOWN, "v": UNKNOWN,
    }  # fmt: skip
    spec = {"i": tf.TensorSpec((None,), tf.int64), "v": tf.TensorSpec((None, 3), tf.float32)}
    assert forms_of_tensors(spec, ["i", "v"]) == {"i": ColumnForm((), True), "v": VECTOR}


class Own(keras.layers.Layer):
    def call(self, x):
        self.add_loss(keras.ops.sum(x))
        return x


def compiled(*layers, **settings):
    model = keras.Sequential([keras.Input((1,)), *layers, keras.layers.Dense(1)])
    if settings:
        model.compile(**settings)
    return model


@pytest.mark.parametrize(
    ("model", "settings", "told"),
    [
        (compiled(), {}, "the model is not compiled"),
        (compiled(), {"metrics": ["mae"]}, "the model has no loss beside its metrics: set it on the estimator"),
        (compiled(), {"optimizer": "adam"}, "the model has no loss: set it"),
        (compiled(optimizer="adam", metrics=["mae"]), {}, "the model has no loss"),
        (compiled(loss="mse"), {"metrics": ["mae"]}, None),
        (compiled(Own()), {"optimizer": "adam"}, None),  # a layer of one's own may have one
        (compiled(keras.layers.Dense(1, activity_regularizer="l2")), {"optimizer": "adam"}, None),
        (compiled(keras.layers.ActivityRegularization(0.1)), {"optimizer": "adam"}, None),
        (compiled(keras.layers.Dense(1, kernel_regularizer="l2")), {"optimizer": "adam"}, None),
    ],
)
def test_a_loss_that_is_missing(model, settings, told):
    if told is None:
        check_compilation(model, settings, {}, has_loop=False)
        return
    with refused(told):
        check_compilation(model, settings, {}, has_loop=False)
    check_compilation(model, settings, {}, has_loop=True)


def test_names_need_no_keras_in_the_driver_if_every_keras_has_them(monkeypatch):
    check_names({"loss": "binary_crossentropy"}, {}, "none_of_keras", built=False)
    check_names({"loss": "unknown"}, {}, "none_of_keras", built=False)  # there is no such library here
    check_names({"loss": "mine"}, {"mine": len}, "keras", built=False)
    with refused(
        "loss='bin_crossentropy': Keras has none of this name .*customObjects={'bin_crossentropy': ...} gives"
    ):
        check_names({"loss": "bin_crossentropy"}, {}, "keras", built=False)
    monkeypatch.setitem(sys.modules, "keras", None)  # cannot be imported
    check_names({"loss": "bin_crossentropy"}, {}, "keras", built=False)


def test_rows_with_a_nan_are_counted_without_those_that_fill_up_a_batch():
    rows, nan = NanRows(), np.nan
    columns = {"x": [[1.0, nan], [2.0, 2.0], [nan, nan], [nan, 1.0]], "y": [1.0, 1.0, nan, 1.0], "n": [1, 2, 3, 4]}
    data = tf.data.Dataset.from_tensors(({name: tf.constant(each) for name, each in columns.items()},
                                         tf.constant([1.0, 0.0, 1.0, -0.0])))  # fmt: skip
    (weights,) = data.map(rows.counted)
    assert weights.numpy().tolist() == [1.0, 0.0, 1.0, 0.0]
    callback = rows.callback(keras)
    callback.on_epoch_end(0, {"loss": 1.0})
    with pytest.raises(
        tfos.FeedError, match="NaN after epoch 1, .* 'x' in 2 rows, 'y' in 1 row: replace them in Spark"
    ):
        callback.on_epoch_end(0, {"loss": nan})
    callback.on_train_begin()
    callback.on_epoch_end(0, {"loss": nan})  # diverges by itself

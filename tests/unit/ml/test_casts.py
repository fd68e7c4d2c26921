"""Each cast of a column to a model's input, and of a model's output to a column, of the largest values of its dtype.

A value comes out equal; into a float it may be rounded, and into an integer its fraction cut off; anything else is
refused by name.
"""

import math
from collections import Counter
from itertools import product

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from tensorflowonspark.columns import to_batch
from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.keras.structure import TensorInfo
from tensorflowonspark.ml.inputs import column_shapes, held, to_inputs

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "float32", "float64"]


def extremes(dtype):
    """Return arrays of one value each: the ends of a dtype, and the first integers that smaller floats can't hold."""
    kind = tf.as_dtype(dtype)
    if kind.is_integer:
        values = [kind.min, kind.max, *(each for each in (2**11 + 1, 2**24 + 1, 2**53 + 1) if each <= kind.max)]
    else:
        values = [False, True] if dtype == "bool" else [1 / 3, 1.75, -0.5, math.nan, math.inf, float(kind.max)]
        values += [] if dtype in ("bool", "float16") else [float(kind.min), 2.0**31, -(2.0**31), 2.0**63, -(2.0**63)]
    return [np.array([each], kind.as_numpy_dtype) for each in values]


def expected(value, dtype):
    """Return a value as a dtype holds it; None if it can't."""
    if dtype in FLOATS:
        with np.errstate(over="ignore"):
            return np.array(value).astype(dtype).item()
    if dtype == "bool":
        return bool(value)
    if not math.isfinite(value):
        return None
    return int(value) if np.iinfo(dtype).min <= int(value) <= np.iinfo(dtype).max else None


def equal(found, wanted):
    return found == wanted or (None not in (found, wanted) and math.isnan(found) and math.isnan(wanted))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:overflow")  # what casts decides
@pytest.mark.parametrize(
    ("make", "refusal"), [(tf.constant, tf.errors.InvalidArgumentError), (np.asarray, FeedError)], ids=["tf", "arrays"]
)
def test_columns_become_inputs(make, refusal):
    cells = Counter()
    dtypes = ["bool", *INTEGERS, *FLOATS]
    for old, new in product(dtypes, dtypes):
        several = [TensorInfo("p", (1,), new), TensorInfo("q", (1,), "int8")]
        for array in extremes(old):
            value, column = array.item(), {"a": make(array)}
            both = {**column, "b": make(np.array([1], np.int8))}
            wanted = expected(value, new)
            for features, inputs, pick in [
                (both, [TensorInfo("x", (2,), new)], lambda found: found[:, 0]),
                (both, several, lambda found: found["p"]),
                (column, several[:1], lambda found: found),
            ]:
                if wanted is None:
                    with pytest.raises(refusal, match=f"does not fit into {new}"):
                        to_inputs(features, inputs)
                    cells["refused"] += 1
                    continue
                found = pick(to_inputs(features, inputs))
                if found.dtype != new:  # what is left to Keras
                    assert not {old, new} & {*INTEGERS}
                    found = tf.cast(found, new)
                assert equal(np.asarray(found).item(), wanted), (old, new, value)
                cells["equal" if equal(wanted, value) else "rounded"] += 1
    assert set(cells) == {"equal", "rounded", "refused"}


def test_a_value_that_does_not_fit_is_shown_with_its_column():
    """And not with the name of the model's input, which Keras chose."""
    ids = tf.constant([1, 2**24 + 1, 3, 2**31 - 1])
    for cast in (to_inputs, tf.function(to_inputs)):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"(?s)column .*user.*int16.*such values:.*16777217"):
            cast({"user": ids}, [TensorInfo("keras_tensor_7", (1,), "int16")])
    assert to_inputs({"user": ids}, ()) is ids


ARROW = {"bool": pa.bool_(), "float32": pa.float32(), "float64": pa.float64()}


def test_outputs_become_columns():
    """Of floats only those without a fraction become integers, and of integers only those that a float holds."""
    cells = Counter()
    outputs = ["bool", *INTEGERS, *FLOATS, "bfloat16"]
    for old, new in product(outputs, [*INTEGERS, *ARROW]):
        for array in extremes(old):
            value = array.astype("float32").item() if old == "bfloat16" else array.item()
            wanted = expected(value, new)
            try:
                kind = ARROW.get(new) or pa.type_for_alias(new)
                (found,) = to_batch(array, pa.schema({"y": kind}), 1).column("y").to_pylist()
            except FeedError:
                # Arrow refuses all integers above those that are all exact.
                assert not equal(wanted, value) or abs(value) > 2**24, (old, new, value)
                cells["refused"] += 1
                continue
            assert equal(found, wanted), (old, new, value)
            assert equal(found, value) or (old in outputs[9:] and new in FLOATS), (old, new, value)
            cells["equal" if equal(found, value) else "rounded"] += 1
    assert set(cells) == {"equal", "rounded", "refused"}


def test_on_jax_an_integer_of_64_bits_is_refused_and_does_not_become_another():
    jax = pytest.importorskip("jax")
    inputs = [TensorInfo("p", (1,), "int64"), TensorInfo("q", (1,), "float32")]
    features = {"a": tf.constant([2**32 + 3]), "b": tf.constant([2**40])}
    with pytest.raises(tf.errors.InvalidArgumentError, match="'a' .*does not fit into int32.*JAX_ENABLE_X64=1"):
        to_inputs(features, held(inputs, "jax"))
    assert to_inputs({**features, "a": tf.constant([3])}, held(inputs, "jax"))["q"].numpy() == 2.0**40
    jax.config.update("jax_enable_x64", True)
    try:
        assert to_inputs(features, held(inputs, "jax"))["p"].numpy() == 2**32 + 3
    finally:
        jax.config.update("jax_enable_x64", False)


def test_a_column_has_the_shape_of_the_input_that_takes_it():
    """In order if no name is that of an input, by name if all are; else it is not known."""
    inputs = [TensorInfo("a", (2, 2), "float32"), TensorInfo("b", (3,), "float32")]
    assert column_shapes(inputs, ["d", "c"], ["d", "c"], {}) == {"d": (2, 2), "c": (3,)}
    assert column_shapes(inputs, ["b", "a"], ["b", "a"], {}) == {"a": (2, 2), "b": (3,)}
    assert set(to_inputs({"d": tf.zeros((1, 2, 2)), "c": tf.zeros((1, 3))}, inputs)) == {"a", "b"}
    with pytest.raises(SpecError, match="'c' is none of them, and others match"):
        column_shapes(inputs, ["b", "c"], ["b", "c"], {})
    assert column_shapes(inputs[:1], ["a", "b"], ["a", "b"], {"b": [1]}) == {"b": (1,)}

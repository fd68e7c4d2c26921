"""With which rows an export is compared, and what is refused or warned of before and after."""

import logging

import keras
import numpy as np
import pytest

from tensorflowonspark.errors import SpecError
from tensorflowonspark.exports import formats, writing
from tensorflowonspark.exports.formats import FORMATS, format_of, require_packages
from tensorflowonspark.exports.parity import require_equal
from tensorflowonspark.exports.writing import comparison, require_writable, save, write_as

pytestmark = pytest.mark.timeout(120)
SEEN = np.arange(160.0, dtype=np.float32).reshape(40, 4)


def model():
    return keras.Sequential([keras.Input((4,), name="x"), keras.layers.Dense(2)])


@pytest.mark.parametrize(
    ("path", "name", "numbered", "text"),
    [
        ("m.onnx", "litert", False, "m.onnx has the ending of onnx, and format='litert' takes the ending '.tflite'"),
        ("m", "onnx", False, "m has the ending of no format, and format='onnx' takes the ending '.onnx'"),
        ("m.keras", "tf_saved_model", False, "takes a directory's path without ending"),
        ("m.weights.h5", "h5", False, "m.weights.h5 has the ending of weights, and format='h5' takes"),
        (
            "m.onnx",
            None,
            True,
            "with version= the path has no ending '.onnx': the versions are directories",
        ),
        ("m", "saved_model", False, "there is none of this name (did you mean 'tf_saved_model'?)"),
    ],
)
def test_a_format_and_a_path_that_do_not_fit_are_refused(path, name, numbered, text):
    with pytest.raises(SpecError) as raised:
        format_of(path, name, numbered=numbered)
    assert text in str(raised.value)


def test_a_package_that_is_missing_is_refused_with_its_extra(monkeypatch):
    monkeypatch.setattr(formats, "find_spec", lambda _: None)
    with pytest.raises(SpecError, match=r'needs tf2onnx and onnx, .*pip install "tensorflowonspark\[onnx\]"'):
        require_packages(FORMATS["onnx"])


@pytest.mark.parametrize(
    ("check_rows", "to", "seen", "rows"),
    [
        (None, "onnx", SEEN, 32),
        (None, "tf_saved_model", SEEN, None),
        (3, "tf_saved_model", {"a": SEEN}, 3),
        (0, "onnx", SEEN, None),
        (SEEN[:7], "onnx", None, 7),
    ],
)
def test_the_rows_are_those_that_the_program_has_taken_or_gives(check_rows, to, seen, rows):
    found = comparison(check_rows, FORMATS[to], seen, 1e-3).rows
    assert rows == (None if found is None else len(found["a"] if isinstance(found, dict) else found))


@pytest.mark.parametrize(
    ("check_rows", "to", "tolerance", "text"),
    [
        (5, "onnx", 1e-3, "check_rows=5: this program has taken no rows of a feed"),
        (-1, "onnx", 1e-3, "check_rows=-1: expected a number of rows"),
        (True, "onnx", 1e-3, "check_rows=True: expected a number of rows"),
        (5, "weights", 1e-3, "format='weights' has no model"),
        (None, "onnx", "1", "tolerance='1': expected a number from 0 on"),
        (None, "onnx", float("nan"), "tolerance=nan: expected a number from 0 on"),
    ],
)
def test_bad_settings_are_refused(check_rows, to, tolerance, text):
    with pytest.raises(SpecError) as raised:
        comparison(check_rows, FORMATS[to], None, tolerance)
    assert text in str(raised.value)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (SEEN[:, :3], "the rows of 'x' are float32 of shape (3,), and the model takes float32 of shape (4,)"),
        ({"a": SEEN, "b": SEEN}, "the model has an input 'x', and the rows have ['a', 'b']"),
        (np.array([["a"] * 4]), "the rows of 'x' are <U1 of shape (4,)"),
    ],
)
def test_rows_that_the_model_does_not_take(tmp_path, caplog, rows, text):
    given = comparison(rows, FORMATS["tf_saved_model"], None, 1e-3)
    with pytest.raises(SpecError) as raised:
        write_as(FORMATS["tf_saved_model"], given)(model(), str(tmp_path / "given"))
    assert text in str(raised.value)
    taken = comparison(None, FORMATS["litert"], rows, 1e-3)  # as the program's datasets may have mapped them
    with caplog.at_level(logging.WARNING):
        write_as(FORMATS["litert"], taken)(model(), str(tmp_path / "model.tflite"))
    assert text in caplog.text
    assert (tmp_path / "model.tflite").exists()


def test_a_runtime_that_is_missing_and_a_program_without_rows_are_warnings(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(formats, "find_spec", lambda _: None)
    with caplog.at_level(logging.WARNING):
        write_as(FORMATS["litert"], comparison(None, FORMATS["litert"], SEEN, 1e-3))(
            model(), str(tmp_path / "a.tflite")
        )
        comparison(None, FORMATS["onnx"], None, 1e-3)
    without_runtime, without_rows = (each for each in caplog.messages if each.startswith("format="))
    assert 'ai_edge_litert is not installed: pip install "tensorflowonspark[litert]"' in without_runtime
    assert "this program has taken no rows of a feed" in without_rows


@pytest.mark.parametrize("to", ["keras", "h5", "tf_saved_model"])
def test_what_keras_and_tensorflow_read_is_compared_if_it_is_asked_for(tmp_path, to, monkeypatch):
    target = str(tmp_path / f"model{FORMATS[to].ending}")
    write = write_as(FORMATS[to], comparison(SEEN, FORMATS[to], None, 1e-3))
    write(model(), target)
    monkeypatch.setattr(writing, "save", lambda _, path: save(model(), path))  # with other weights
    with pytest.raises(SpecError, match=r"differs from the model: row \d+ of output 'output_0' is "):
        write(model(), target)


@pytest.mark.parametrize(
    ("expected", "found", "text"),
    [
        ({"a": [[1.0, np.nan]]}, {"a": [[1.0, 2.0]]}, "row 0 of output 'a' is 2.0, and the model gives nan"),
        ({"a": [[1.0]]}, {"b": [[1.0]]}, "has the outputs ['b'], and the model ['a']"),
        (
            {"a": [[1.0], [2.0]]},
            {"a": [[1.0]]},
            "the shape (1, 1) for 2 rows, and the model gives (2, 1)",
        ),
        ({"a": [[0.0]]}, {"a": [[1e-9]]}, "row 0 of output 'a' is 1e-09"),
        ({"a": [["x"]]}, {"a": [["y"]]}, "row 0 of output 'a' is y, and the model gives x"),
        (
            {"a": [[np.inf, 1.0]]},
            {"a": [[np.inf, 1.1]]},
            "largest difference 0.1; tolerance=0.001 of the",
        ),
    ],
)
def test_results_that_differ_are_refused_with_the_first_largest(expected, found, text):
    with pytest.raises(SpecError) as raised:
        require_equal(
            *({n: np.array(v) for n, v in each.items()} for each in (expected, found)), 1e-3, "the export", "use Keras"
        )
    assert text in str(raised.value)


def test_equal_results_may_hold_what_is_no_number():
    same = {"a": np.array([[np.nan, np.inf, -np.inf, 0.0]]), "b": np.zeros((0, 3))}
    assert require_equal(same, same, 0.0, "the export", "") == 0.0


@pytest.mark.parametrize("to", ["onnx", "weights", "keras"])
def test_models_of_other_libraries_have_fewer_formats(to):
    import tensorflow as tf

    with pytest.raises(SpecError, match=f"format='{to}': Module writes tf_saved_model; models of Keras 3 have all"):
        require_writable(tf.Module(), FORMATS[to])

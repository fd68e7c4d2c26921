"""Models in the formats of other libraries: equal results in their own runtimes, or refused by name."""

import logging

import keras
import numpy as np
import pytest

from benchmarks.formats.models import MODELS, dense
from tensorflowonspark.errors import SpecError
from tensorflowonspark.exports.formats import FORMATS
from tensorflowonspark.exports.parity import apply
from tensorflowonspark.exports.served_model import ServedModel
from tensorflowonspark.exports.writing import Comparison, write_as

pytestmark = pytest.mark.timeout(120)
# What can't be is refused: by the converter, by its runtime, or since it gives other results.
REFUSED = {
    ("lstm", "litert"): "ai_edge_litert can't apply what was exported (RuntimeError: Select TensorFlow op",
    ("text", "onnx"): "can't express this model (SpecError: its graph takes",
    ("text", "openvino"): "the format 'openvino' can't express this model (OpConversionFailure",
    ("quantized", "litert"): "the format 'litert' can't express this model (ConverterError",
    ("quantized", "openvino"): "differs from the model: row",
}


@pytest.fixture(autouse=True)
def logs():
    root = logging.getLogger()
    before = root.level, [*root.filters], [*root.handlers]
    yield
    assert (root.level, [*root.filters], [*root.handlers]) == before


@pytest.mark.parametrize("to", [name for name, each in FORMATS.items() if each.is_converted])
@pytest.mark.parametrize(
    "make",
    [pytest.param(make, marks=[pytest.mark.smoke] if make is dense else [], id=make.__name__) for make in MODELS],
)
def test_every_kind_of_model(tmp_path, make, to):
    keras.utils.set_random_seed(1)
    model, rows = make()
    path = str(tmp_path / f"model{FORMATS[to].ending}")
    write = write_as(FORMATS[to], Comparison(rows, True, 1e-3))
    if (make.__name__, to) in REFUSED:
        with pytest.raises(SpecError) as raised:
            write(model, path)
        assert REFUSED[make.__name__, to] in str(raised.value)
        return
    write(model, path)
    served = ServedModel(model, rows=rows)
    found = apply(path, FORMATS[to], served.row_values())
    for name, values in served.results().items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-5)

"""Formats of programs on JAX: a process with Keras on TensorFlow converts their models."""

import pytest

from tensorflowonspark.exports.formats import FORMATS
from tests.support.commands import run_python

pytestmark = pytest.mark.timeout(300)
_PROGRAM = """
import keras, numpy as np, sys
from tensorflowonspark.errors import SpecError
from tensorflowonspark.exports.formats import FORMATS
from tensorflowonspark.exports.writing import comparison, write_as

@keras.saving.register_keras_serializable("tests")
class Scaled(keras.layers.Layer):
    def __init__(self, factor=3.0, **options):
        super().__init__(**options)
        self.factor = factor
    def call(self, values):
        return keras.ops.sin(values) * self.factor
    def get_config(self):
        return {**super().get_config(), "factor": self.factor}

class OfJax(keras.layers.Layer):
    def call(self, values):
        import jax
        return jax.numpy.tanh(values)

rows = np.random.default_rng(0).random((5, 8, 8, 1), np.float32)
def make(*more):
    layers = [keras.layers.Conv2D(4, 3), keras.layers.MaxPooling2D(), *more, keras.layers.Flatten()]
    return keras.Sequential([keras.Input((8, 8, 1)), *layers, keras.layers.Dense(3)])

assert keras.backend.backend() == "jax"
for to in map(FORMATS.get, sys.argv[2].split()):
    write_as(to, comparison(rows, to, None, 1e-3))(make(Scaled()), f"{sys.argv[1]}/model{to.ending}")
if "OfJax" in sys.argv:
  try:
    write_as(to, comparison(rows, to, None, 1e-3))(make(OfJax()), f"{sys.argv[1]}/other")
  except SpecError as error:
    print(error)
"""


@pytest.mark.parametrize("names", ["litert", pytest.param("onnx openvino", marks=pytest.mark.slow)])
def test_the_export_computes_what_the_model_does(tmp_path, names):
    run_python(_PROGRAM, tmp_path, names, seconds=280, KERAS_BACKEND="jax")
    assert {each.name for each in tmp_path.iterdir()} == {f"model{FORMATS[name].ending}" for name in names.split()}


@pytest.mark.slow
def test_a_layer_that_tensorflow_does_not_know_is_named(tmp_path):
    text = run_python(_PROGRAM, tmp_path, "litert", "OfJax", seconds=280, KERAS_BACKEND="jax")
    assert "format='litert' is written on TensorFlow, where Keras can't read this model (" in text
    assert "'OfJax'" in text

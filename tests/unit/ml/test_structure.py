"""The names of a model's inputs and outputs, and values by them in the model's own structure."""

import keras
import numpy as np
import pytest

import tensorflowonspark as tfos
from tensorflowonspark.keras.structure import as_inputs, as_outputs, input_paths, output_paths
from tensorflowonspark.ml import KerasEstimator, KerasModel
from tensorflowonspark.ml.distribution import load_call
from tensorflowonspark.ml.inputs import input_of_each
from tensorflowonspark.ml.preprocessing_layers import input_names
from tests.support.structured import structured

pytestmark = pytest.mark.timeout(120)

NAMES = {
    "dicts": (["right", "left"], ["z", "a"]),
    "one key": (["right"], ["z"]),
    "nested": (["right", "left_0", "left_1"], ["z", "a_0", "a_1"]),
    "lists": (["layer_0", "layer_1"], ["out_0", "out_1"]),
}
BEHIND = {  # the factor of each output, and the input that it has
    "dicts": {"z": (1, "left"), "a": (10, "right")},
    "one key": {"z": (1, "right")},
    "nested": {"z": (1, "left_0"), "a_0": (10, "left_1"), "a_1": (100, "right")},
    "lists": {"out_0": (1, "layer_0"), "out_1": (10, "layer_1")},
}


@pytest.mark.deep
@pytest.mark.parametrize("library", ["keras", "tf_keras"])
@pytest.mark.parametrize("kind", NAMES)
def test_the_names_and_the_results(library, kind):
    model = structured(library, kind)
    assert (list(input_paths(model)), list(output_paths(model))) == NAMES[kind]
    assert input_names(model) == NAMES[kind][0]
    bundle = KerasModel.from_keras(model)._bundle
    assert ([each.name for each in bundle.inputs], [each.tensor.name for each in bundle.outputs]) == NAMES[kind]
    features = {name: np.full((3, 1), place + 1.0, np.float32) for place, name in enumerate(NAMES[kind][0])}
    results = load_call(bundle)(features)
    assert {name: each[0, 0] for name, each in results.items()} == {
        name: factor * features[source][0, 0] for name, (factor, source) in BEHIND[kind].items()
    }
    hidden = load_call(bundle, ["out_0"])(features)
    assert set(hidden) == {"out_0"}
    assert hidden["out_0"][0, 0] == results[NAMES[kind][1][0]][0, 0]


@pytest.mark.deep
@pytest.mark.parametrize("kind", NAMES)
def test_keras_takes_what_is_made_of_values_by_name(kind):
    model = structured(kind=kind)
    values = {name: np.ones((2, 1)) for name in NAMES[kind][0]}
    labels = {name: np.ones((2, 1)) for name in NAMES[kind][1]}
    x = as_inputs(model, values if len(values) > 1 else values["right"])
    y = as_outputs(model, labels if len(labels) > 1 else labels["z"])
    assert np.isfinite(model.fit(x, y, verbose=0).history["loss"][0])


def test_names_that_two_tensors_have_are_refused():
    x = keras.Input((1,))
    model = keras.Model(x, {"a": [keras.layers.Dense(1)(x)], "a_0": keras.layers.Dense(1)(x)})
    with pytest.raises(tfos.SpecError, match="two outputs of the model have the name 'a_0': rename a key"):
        output_paths(model)


@pytest.mark.parametrize(
    ("kind", "params", "told"),
    [
        ("dicts", {"featuresCols": ["u", "v"], "labelCols": ["x", "y"]}, None),
        ("dicts", {"featuresCols": ["left", "right"], "labelCols": ["a", "z"]}, None),
        ("dicts", {"featuresCols": ["layer_0", "layer_1"], "labelCols": ["x", "y"]}, None),  # in order
        ("dicts", {"featuresCols": ["left", "v"], "labelCols": ["a", "z"]}, "'v' is none of them, and others match"),
        ("nested", {"featuresCols": ["left_1", "left_0", "right"], "labelCols": ["z", "a_1", "a_0"]}, None),
        ("nested", {"featuresCols": ["left", "right"], "labelCols": ["z", "a_1", "a_0"]},
         "the model has the inputs 'right', 'left_0', 'left_1', and no column belongs to 'left_0', 'left_1': name one"),
        ("nested", {"featuresCols": ["u", "v", "w"], "labelCols": ["z", "a_1"]},
         "the model has the outputs 'z', 'a_0', 'a_1', and no column belongs to 'a_0': name one for each .labelCols"),
        ("lists", {"featuresCols": ["u", "v"], "labelCol": "y"}, "outputs 'out_0', 'out_1', and no column belongs to"),
        ("lists", {"featuresCol": "u", "labelCols": ["x", "y"]}, "inputs 'layer_0', 'layer_1', and no column belongs"),
    ],
)  # fmt: skip
def test_columns_are_compared_with_the_names_before_anything_starts(kind, params, told):
    est = KerasEstimator(structured(kind=kind), **params)
    if told is None:
        est._check_model()
        return
    with pytest.raises(tfos.SpecError, match=told):
        est._check_model()


def test_columns_in_order_go_to_the_inputs_in_the_order_of_the_dict():
    inputs = KerasModel.from_keras(structured())._bundle.inputs
    assert [each.name for each in input_of_each(inputs, ["u", "v"])] == ["right", "left"]

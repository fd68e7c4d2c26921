"""Names of custom classes and functions in a model."""

from dataclasses import replace

import pytest

import tensorflowonspark as tfos
from tensorflowonspark.ml import KerasModel
from tensorflowonspark.ml.code import Code, code_for
from tensorflowonspark.ml.serialization import deserialize, serialize
from tests.support.custom_layers import layer, model_of

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(300)]


def test_names_that_keras_would_mix_up_are_refused():
    import keras

    def relu(x):
        return -x

    with pytest.raises(tfos.SpecError, match=r"two objects of the name 'Scale' .*register_keras_serializable"):
        KerasModel.from_keras(model_of(layer(), layer()))
    with pytest.raises(tfos.SpecError, match=r"relu has the name of 'relu' in keras.activations"):
        serialize(keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, activation=relu)]))

    def mse(y, p):
        return keras.ops.abs(y - p)

    with pytest.raises(tfos.SpecError, match=r"mse has the name of 'mse' in keras.losses"):
        serialize(model_of(loss=mse, metrics=["mse"]))
    registered = [keras.saving.register_keras_serializable(package)(layer()) for package in ("one", "other")]
    assert KerasModel.from_keras(model_of(*registered)).custom_code
    assert not KerasModel.from_keras(model_of(loss="mse", optimizer="adam", metrics=["mae"])).custom_code


def test_names_that_the_user_gives_count_in_either_form():
    import keras

    mine = keras.saving.register_keras_serializable("given")(layer("Given"))
    assert set(code_for({"Given": mine}).names) == {"Given", "given>Given"}
    frozen = serialize(model_of(mine))
    bare = replace(frozen, code=Code())
    keras.saving.get_custom_objects().pop("given>Given")
    with pytest.raises(tfos.SpecError, match="one that is read from a file needs customObjects"):
        deserialize(bare)
    assert type(deserialize(bare, code_for({"Given": mine}).load()).layers[0]) is mine
    assert type(deserialize(frozen).layers[0]) is mine
    assert not Code().load()

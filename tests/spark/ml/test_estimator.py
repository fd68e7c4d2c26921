"""DataFrames that the estimator refuses before it starts nodes."""

import keras
import pytest
import tf_keras

import tensorflowonspark as tfos
from tensorflowonspark.ml import KerasEstimator
from tests.support.lines import line, lines

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(240)]


def compiled(loss):
    model = line()
    model.compile("adam", loss)  # Keras takes any name until the first step
    return model


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"labelCol": "digit"}, "the DataFrame has no column 'digit'; it has"),
        ({"labelCol": "labl"}, r"no column 'labl' \(did you mean 'label'\?\)"),
        ({"model": None}, "no model"),
        ({"model": "resnet"}, "expected a Keras model, or a function"),
        ({"validationIndicatorCol": "held_out", "validationData": True}, "not both"),
        ({"initialModel": 3}, "expected a fitted KerasModel"),
        ({"model": line(), "loss": "mean_squared_eror"}, "has none of this name .did you mean 'mean_squared_error'"),
        ({"model": line(), "loss": {"y": "mse"}, "optimizer": "adm"}, r"optimizer='adm': .*did you mean 'adam'"),
        ({"model": line(), "metrics": ["acuracy"]}, r"metrics='acuracy': .*did you mean 'accuracy'"),
        ({"model": compiled("mean_squared_eror")}, "loss='mean_squared_eror': .*did you mean 'mean_squared_error'"),
        ({"model": compiled("mean_squared_eror"), "optimizer": "sgd"}, "loss='mean_squared_eror'"),
        ({"model": keras.Sequential()}, "the model is not compiled"),
        ({"model": tf_keras.Sequential(), "loss": ["hing"]}, r"loss='hing': .*did you mean 'hinge'"),
    ],
)
def test_what_cant_be_fitted_is_refused_before_anything_starts(spark, params, told):
    data = lines(spark)
    if params.get("validationData"):
        params = {**params, "validationData": data}
    with pytest.raises(tfos.SpecError, match=told):
        KerasEstimator(**{"model": line, **params}).fit(data)

"""Preprocessing layers that the estimator adapts."""

import numpy as np
import pytest
from pyspark.sql import functions as f

import tensorflowonspark as tfos
from tensorflowonspark.ml import KerasEstimator
from tensorflowonspark.ml.preprocessing_layers import unadapted_layers
from tensorflowonspark.ml.serialization import deserialize, serialize
from tests.support.preprocessing import assert_quantiles, states_in, structured, table

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(240)]
QUIET = {"clusterOptions": {"log_level": "WARNING"}}


def build():
    return structured()


@pytest.mark.slow
def test_the_estimator_adapts_by_itself(spark):
    frame = table(spark).withColumn("held", f.col("a") > 30)
    params = {"featuresCols": ["word", "text", "a", "b"], "labelCol": "y", "batchSize": 8, "numWorkers": 2, **QUIET}
    train = frame.where("not held")
    # As Keras saves it: of a vocabulary that ends with an empty token the file loses this one.
    expected = states_in(deserialize(serialize(tfos.adapt(structured(), train))))
    given = structured()
    fitted = [
        KerasEstimator(model, validationIndicatorCol="held", **params).fit(frame) for model in (given, build)
    ]  # the same two ways: by Spark in the driver, and on the nodes
    assert len(unadapted_layers(structured())) == 4
    assert len(unadapted_layers(given)) == 4  # the user's own model is as it was
    for model in fitted:
        states = states_in(model.keras())
        assert_quantiles(states.pop("Discretization"), np.arange(31.0), 3, 0.01)
        for kind, state in states.items():
            for mine, theirs in zip(state, expected[kind], strict=True):
                assert mine == pytest.approx(theirs, rel=1e-4) if kind == "Normalization" else mine == theirs
        assert model.transform(frame).where("prediction is not null").count() == 37

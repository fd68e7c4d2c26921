"""Models with inputs and outputs in dicts and lists within dicts, trained on several workers and applied."""

import pytest
from pyspark.sql import functions as f

from tensorflowonspark.ml import KerasEstimator, KerasModel
from tests.support.structured import structured

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(300)]


NESTED = ["left_1", "right", "left_0"], {"a_1": "100 * right", "a_0": "10 * left_1", "z": "left_0"}
# The columns that the model takes, and each label as the model gives it, so that the loss is 0 if none is swapped.
CASES = {
    ("keras", "dicts"): (["left", "right"], {"a": "10 * right", "z": "left"}),
    ("keras", "nested"): NESTED,
    ("keras", "one key"): (["other"], {"label": "other"}),
    ("tf_keras", "dicts"): (["u", "v"], {"x": "v", "y": "10 * u"}),  # in the order of the dicts
    ("tf_keras", "nested"): NESTED,
}


@pytest.mark.slow
@pytest.mark.parametrize(("library", "kind"), CASES)
def test_no_input_and_no_output_is_swapped(spark, tmp_path, library, kind):
    features, labels = CASES[library, kind]
    workers = 1 if kind == "one key" else 2
    columns = [(f.col("id") + place / 4).cast("float").alias(name) for place, name in enumerate(features)]
    data = spark.range(12).select("id", *columns)
    data = data.select("*", *(f.expr(each).cast("float").alias(name) for name, each in labels.items()))
    est = KerasEstimator(structured(library, kind), numWorkers=workers, batchSize=4, featuresCols=features,
                         labelCols=list(labels), clusterOptions={"log_level": "WARNING"})  # fmt: skip
    model = est.fit(data)
    assert model.history["loss"] == [0.0]
    model.save(str(tmp_path / "stage"))
    for stage in (model, KerasModel.load(str(tmp_path / "stage"))):
        row = stage.transform(data).where("id = 3").first()
        if len(labels) == 1:
            assert row.prediction == row.label
        elif "z" in labels:
            assert row.prediction.asDict() == {name: row[name] for name in labels}
        else:
            assert (row.prediction.z, row.prediction.a) == (row.x, row.y)

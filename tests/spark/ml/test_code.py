"""Models with custom classes in files, and sessions that forbid to load code."""

import numpy as np
import pytest

import tensorflowonspark as tfos
from tensorflowonspark.ml import KerasEstimator, KerasModel
from tests.support.custom_layers import layer, model_of

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(300)]


@pytest.mark.slow
def test_a_file_of_ones_own_and_what_spark_forbids(spark, tmp_path):
    scale = layer()
    model = model_of(scale)
    model.save(tmp_path / "model.keras")
    with pytest.raises(tfos.SpecError, match="needs customObjects"):
        KerasModel.from_file(str(tmp_path / "model.keras"))
    stage = KerasModel.from_file(str(tmp_path / "model.keras"), customObjects={"Scale": scale})
    assert stage.custom_code == ["Scale"]
    stage.write().overwrite().save(str(tmp_path / "stage"))
    spark.conf.set("spark.tensorflowonspark.loadCode", "false")
    try:
        with pytest.raises(tfos.SpecError, match=r"holds code \(Scale\), and spark.tensorflowonspark.loadCode=false"):
            KerasModel.load(str(tmp_path / "stage"))
        with pytest.raises(tfos.SpecError, match=r"holds code \(objects/objects.pkl\)"):
            KerasEstimator(model).save(str(tmp_path / "est"))
            KerasEstimator.load(str(tmp_path / "est"))
    finally:
        spark.conf.unset("spark.tensorflowonspark.loadCode")
    frame = spark.createDataFrame([([1.0],)], "features array<float>")
    expected = float(model.predict(np.array([[1.0]]), verbose=0)[0, 0])
    assert KerasModel.load(str(tmp_path / "stage")).transform(frame).first().prediction == pytest.approx(expected)


class Marking:
    """A function that leaves a file when it is unpickled."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return eval, (f"open({self.marker!r}, 'w').close() or (lambda rows: rows)",)


def test_loading_a_model_runs_none_of_its_code_and_can_be_forbidden(spark, tmp_path):
    stage = KerasModel.from_function(Marking(tmp_path / "ran"), {"same": ("float64", ())}, featuresCol="x")
    stage.setFill({"x": 1}).save(str(tmp_path / "stage"))
    again = KerasModel.load(str(tmp_path / "stage"))
    assert again.custom_code == ["function.pkl"]
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "stage/objects").exists()
    assert again.transform(spark.createDataFrame([(2.0,)], "x double")).first().prediction == 2.0
    assert (tmp_path / "ran").exists()

    again.setFill({"x": b""}).save(str(tmp_path / "bytes"))
    assert (tmp_path / "bytes/objects/objects.pkl").exists()
    spark.conf.set("spark.tensorflowonspark.loadCode", "false")
    try:
        for name in ("stage", "bytes"):
            with pytest.raises(tfos.SpecError, match=r"holds code \(.*pkl\)"):
                KerasModel.load(str(tmp_path / name))
    finally:
        spark.conf.unset("spark.tensorflowonspark.loadCode")

"""Models with custom classes in files, and sessions that forbid to load code."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext

import numpy as np
import pyarrow as pa
import pytest
from pyspark.ml import PipelineModel

import tensorflowonspark as tfos
from tensorflowonspark.ml import KerasEstimator, KerasModel
from tensorflowonspark.ml.refusal import check_code
from tests.support.custom_layers import layer, model_of

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(300)]


@contextmanager
def refusing(spark):
    spark.conf.set("spark.tensorflowonspark.loadCode", "false")
    try:
        yield
    finally:
        spark.conf.unset("spark.tensorflowonspark.loadCode")


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
    with refusing(spark):
        with pytest.raises(tfos.SpecError, match=r"holds code \(Scale\), and spark.tensorflowonspark.loadCode=false"):
            KerasModel.load(str(tmp_path / "stage"))
        with pytest.raises(tfos.SpecError, match=r"holds code \(objects/objects.pkl\)"):
            KerasEstimator(model).save(str(tmp_path / "est"))
            KerasEstimator.load(str(tmp_path / "est"))
    frame = spark.createDataFrame([([1.0],)], "features array<float>")
    expected = float(model.predict(np.array([[1.0]]), verbose=0)[0, 0])
    assert KerasModel.load(str(tmp_path / "stage")).transform(frame).first().prediction == pytest.approx(expected)


class Marking:
    """A function that leaves a file when it is unpickled."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return eval, (f"open({self.marker!r}, 'w').close() or (lambda rows: rows)",)


@pytest.mark.slow
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
    with refusing(spark):
        for name in ("stage", "bytes"):
            with pytest.raises(tfos.SpecError, match=r"holds code \(.*pkl\)"):
                KerasModel.load(str(tmp_path / name))


def exported(path):
    model_of().export(path, verbose=False)
    return path


def tf_keras_file(path):
    import tf_keras

    tf_keras.Sequential([tf_keras.Input((1,)), tf_keras.layers.Dense(1)]).save(path)
    return path


SOURCES = {
    "SavedModel": (lambda path: KerasModel.from_saved_model(exported(f"{path}/source")), r"saved_model"),
    "tf_keras": (
        lambda path: KerasModel.from_file(tf_keras_file(f"{path}/source.keras"), library="tf_keras"),
        r"model.keras of tf_keras",
    ),
    "function": (lambda _path: KerasModel.from_function(abs, {"y": ("float32", ())}), r"function.pkl"),
}
LOADS = {
    "KerasModel.load": lambda path: KerasModel.load(f"{path}/stage"),
    "PipelineModel.load": lambda path: PipelineModel.load(f"{path}/pipeline"),
    "initialModel": lambda path: KerasEstimator(initialModel=KerasModel.load(f"{path}/stage")),
    "ml.mlflow.load_model": lambda path: KerasModel.read().load_locally(f"{path}/local/stage"),
}


@pytest.mark.parametrize("source", SOURCES)
def test_the_setting_holds_for_every_way_to_load(spark, tmp_path, source):
    make, code = SOURCES[source]
    stage = make(tmp_path)
    stage.save(f"{tmp_path}/stage")
    PipelineModel([stage]).save(f"{tmp_path}/pipeline")
    stage.write().save_locally(f"{tmp_path}/local/stage")
    assert KerasModel.load(f"{tmp_path}/stage").custom_code == stage.custom_code
    with refusing(spark):
        for load in [*LOADS.values(), *([make] if source != "function" else [])]:
            with pytest.raises(
                tfos.SpecError, match=rf"holds code \({code}\), and spark.tensorflowonspark.loadCode=fal"
            ):
                load(tmp_path)


def test_the_setting_holds_in_threads_of_the_driver(spark, tmp_path):
    """In which no session of Spark is active."""
    exported(f"{tmp_path}/source")
    with refusing(spark), ThreadPoolExecutor(1) as pool:
        with pytest.raises(tfos.SpecError, match=r"holds code \(saved_model\)"):
            pool.submit(KerasModel.from_saved_model, f"{tmp_path}/source").result()


@pytest.mark.smoke
def test_the_setting_holds_in_tasks(spark, tmp_path):
    stage = KerasModel.from_function(abs, {"y": ("float32", ())})
    stage.write().save_locally(f"{tmp_path}/local/stage")
    local = f"{tmp_path}/local/stage"

    def load(batches):
        for batch in batches:
            try:
                KerasModel.read().load_locally(local)
                found = ""
            except tfos.SpecError as error:
                found = str(error)
            yield pa.RecordBatch.from_pydict({"found": [found] * batch.num_rows})

    with refusing(spark):
        (row,) = spark.range(1).mapInArrow(load, "found string").collect()
    assert "holds code (function.pkl), and spark.tensorflowonspark.loadCode=false forbids" in row.found


@pytest.mark.parametrize("forbidden", [True, False])
def test_tasks_that_do_not_receive_the_setting_load_no_code(spark, tmp_path, forbidden):
    """Those of RDDs, which a DataFrame's ``foreachPartition`` starts too."""
    told = tmp_path / "told"

    def load(_rows, variable=None):
        with pytest.MonkeyPatch.context() as patch:
            if variable:
                patch.setenv("TFOS_LOAD_CODE", variable)
            try:
                return [str(check_code("stage", ["function.pkl"]))]
            except tfos.SpecError as error:
                return [str(error)]

    def write(rows):
        told.write_text(load(rows)[0])

    with refusing(spark) if forbidden else nullcontext():
        found = spark.sparkContext.parallelize([0], 1).mapPartitions(load).collect()
        found += spark.range(1).rdd.map(load).first()
        spark.range(1).coalesce(1).foreachPartition(write)
        found.append(told.read_text())
        allowed = spark.sparkContext.parallelize([0], 1).mapPartitions(lambda rows: load(rows, "true")).collect()
    assert allowed == ["False"]
    wanted = "which does not receive spark.tensorflowonspark.loadCode, TFOS_LOAD_CODE=(not set) forbids to load any"
    assert len(found) == 3
    assert all(wanted in each for each in found)


def test_a_model_that_was_loaded_where_code_is_refused_needs_a_safe_keras_where_it_is_used(spark, tmp_path):
    KerasModel.from_keras(model_of()).save(f"{tmp_path}/stage")
    with refusing(spark):
        stage = KerasModel.load(f"{tmp_path}/stage")
    plan = KerasEstimator(initialModel=stage, optimizer="sgd", loss="mse")._job(
        spark.createDataFrame([([1.0], 1.0)], "features array<float>, label float")
    )
    assert stage._bundle.distrusted
    assert plan.model.distrusted
    assert not KerasModel.load(f"{tmp_path}/stage")._bundle.distrusted


def test_a_class_that_the_user_gives_replaces_the_saved_one(spark, tmp_path):
    """Under the name that is registered with Keras too."""
    import keras

    registered = keras.saving.register_keras_serializable("given")
    KerasModel.from_keras(model_of(registered(layer("Given")))).save(f"{tmp_path}/stage")
    second = registered(layer("Given"))
    stage = KerasModel.load(f"{tmp_path}/stage").setCustomObjects({"Given": second})
    stage.save(f"{tmp_path}/again")
    for found in (stage, KerasModel.load(f"{tmp_path}/again")):
        (own,) = (each for each in found.keras().layers if type(each).__name__ == "Given")
        assert type(own) is second

"""A model of Keras 3 whose file holds a lambda, in processes that have told Keras to run such code.

``keras.config.enable_unsafe_deserialization()`` counts for the thread that calls it, and more than what Keras is told
when it loads a file. Where code is refused it counts for nothing, whatever loads the model, and wherever.
"""

import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from tensorflowonspark.ml import KerasModel
from tensorflowonspark.ml.distribution import load_call
from tensorflowonspark.ml.fetching import fetch_keras_model
from tensorflowonspark.ml.serialization import deserialize
from tests.support.custom_layers import model_of

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(300), pytest.mark.smoke]
_SETTING = "spark.tensorflowonspark.loadCode"


@pytest.fixture(scope="module")
def hostile(spark, tmp_path_factory):
    """A saved stage whose model was replaced by one that runs code when it is loaded."""
    import keras

    place = tmp_path_factory.mktemp("hostile")
    KerasModel.from_keras(model_of()).write().save_locally(f"{place}/stage")
    function = eval(f"lambda x: (open({str(place / 'ran')!r}, 'w').close(), x)[1]")
    keras.Sequential([keras.Input((1,)), keras.layers.Lambda(function)]).save(place / "model.keras")
    shutil.copy(place / "model.keras", place / "stage/model/model.keras")
    return place


def stage_of(place):
    return KerasModel.read().load_locally(f"{place}/stage")


LOADS = {
    "a file": lambda place: fetch_keras_model(f"{place}/model.keras", "keras"),
    "a stage": lambda place: stage_of(place).keras(),
    "a stage's rows": lambda place: load_call(stage_of(place)._bundle),
    "what a node receives": lambda place: deserialize(pickle.loads(pickle.dumps(stage_of(place)._bundle))),
}


def told(load, place):
    """Return what a load raises where Keras was told to run the code of files, and whether any ran."""
    import keras
    from keras.src.saving import serialization_lib

    marker = place / "ran"
    marker.unlink(missing_ok=True)  # by what has made it, or by another context
    with serialization_lib.SafeModeScope(None):  # so that it ends with this call, in a worker that others use
        keras.config.enable_unsafe_deserialization()
        try:
            load(place)
            said = "loaded"
        except Exception as error:
            said = str(error)
    return f"{said} (ran: {marker.exists()})"


def in_sql(spark, load, place):
    def rows(batches):
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"said": [told(load, place)] * batch.num_rows})

    return spark.range(1).mapInArrow(rows, "said string").first().said


def in_rdd(spark, load, place):
    return spark.sparkContext.parallelize([0], 1).map(lambda _: told(load, place)).first()


def in_foreach_partition(spark, load, place):
    spark.range(1).coalesce(1).foreachPartition(lambda _: (place / "said").write_text(told(load, place)) and None)
    return (place / "said").read_text()


def in_driver(_spark, load, place):
    return told(load, place)


def in_thread(_spark, load, place):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(told, load, place).result()


OTHERS = [pytest.param(each, marks=pytest.mark.slow) for each in (in_rdd, in_foreach_partition)]
CONTEXTS = [in_driver, in_thread, in_sql, *OTHERS]


@pytest.mark.slow
@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("place", LOADS)
def test_what_is_refused_stays_refused_whatever_keras_was_told(spark, hostile, place, context):
    spark.conf.set(_SETTING, "false")
    try:
        said = context(spark, LOADS[place], hostile)
    finally:
        spark.conf.unset(_SETTING)
    assert "Code is refused here, whatever keras.config allows" in said
    assert "(ran: False)" in said


def test_where_code_is_allowed_keras_does_as_it_was_told(spark, hostile):
    """So that the table above proves something."""
    assert told(LOADS["a stage"], hostile) == "loaded (ran: True)"

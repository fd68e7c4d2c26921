"""One model for each key: results, failures of keys, restarts, and what a result depends on."""

import datetime
import os
import pickle
import signal
import time
from decimal import Decimal
from functools import partial
from pathlib import Path
from threading import Thread

import keras
import numpy as np
import psutil
import pytest
from pyspark.sql import functions as f

import tensorflowonspark as tfos
from tensorflowonspark.errors import SpecError
from tensorflowonspark.frames import key_server
from tensorflowonspark.frames.key_server import PROCESS, checked
from tests.support.programs import wait_for

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(240)]


def stores(spark, keys, rows=8):
    """Rows of some stores: ``store``, ``x`` (two floats) and ``y``."""
    numbers = spark.range(keys * rows)
    return numbers.selectExpr(f"int(id % {keys}) as store", "array(float(id), float(id % 5)) as x", "float(id) as y")


def build():
    import keras

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, "relu"), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model


def train(_store, rows):
    model = build()
    return model, {"loss": model.fit(rows["x"], rows["y"], batch_size=4, verbose=0).history["loss"][-1]}


def go_on(_store, rows, model):
    return model, {"loss": model.fit(rows["x"], rows["y"], batch_size=4, verbose=0).history["loss"][-1]}


def by_store(frame):
    return {row.store: row for row in frame.collect()}


def test_a_model_for_each_key_or_its_error(spark, tmp_path):
    def of_store(store, rows):
        if store == 1:
            raise ValueError("no model for this one")
        return train(store, rows)

    frame = stores(spark, 2).union(spark.sql("select int(null), array(1F, 2F), 3F"))
    found = by_store(tfos.fit_each(frame, "store", of_store, num_partitions=1))
    assert {store: row.rows for store, row in found.items()} == {0: 8, 1: 8, None: 1}
    assert found[1].error.startswith("ValueError: no model for this one (test_each.py, line ")
    assert found[1].model is None
    assert found[1].metrics == {}
    for store in (0, None):
        assert found[store].error is None
        assert found[store].metrics["loss"] > 0
        file = tmp_path / "model.keras"
        file.write_bytes(found[store].model)
        assert keras.models.load_model(file).predict(np.ones((1, 2)), verbose=0).shape == (1, 1)


def ends_badly(store, rows):
    if store == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if store == 1:
        os._exit(3)
    if store == 2:
        time.sleep(600)
    if store == 3:
        raise SystemExit("done")
    return {4: "text", 5: (1, 2, 3), 6: {"loss": "small"}, 7: {"losses": [1.0, 2.0]}, 8: {"loss": 1}, 9: None}[store]


ERRORS = {
    0: "its process was ended by SIGKILL",
    1: "its process ended with exit code 3",
    2: "TimeoutError: it had not ended after 3 s (timeout)",
    3: "SystemExit: done",
    4: "TypeError: the function returned 'text': expected a Keras model, a dict of numbers, or a pair of both",
    5: "TypeError: the function returned (1, 2, 3): expected",
    6: "TypeError: the metric 'loss' is array('small'",
    7: "TypeError: the metric 'losses' is array([1., 2.])",
}


@pytest.mark.slow
@pytest.mark.parametrize("one_model", [False, True])
def test_keys_that_fail_are_rows_with_an_error_and_the_others_go_on(spark, one_model):
    def with_model(store, rows, model):
        return ends_badly(store, rows)

    options = {"function": with_model, "build": build} if one_model else {"function": ends_badly}
    found = by_store(tfos.fit_each(stores(spark, 10), "store", timeout=3, num_partitions=2, **options))
    assert {store for store, row in found.items() if row.error} == set(ERRORS)
    for store, text in ERRORS.items():
        assert found[store].error.startswith(text)
    assert found[8].metrics == {"loss": 1.0}


def test_a_model_that_fits_in_no_row_is_an_error(monkeypatch):
    monkeypatch.setattr(key_server, "MOST_BYTES", 1000)
    with pytest.raises(ValueError, match=r"the model has [\d,]+ bytes, and one of a row at most 1,000"):
        checked(build())


def test_what_build_returns_must_be_compiled(spark):
    row = tfos.fit_each(stores(spark, 1), "store", go_on, build=lambda: keras.Sequential()).first()
    assert "SpecError: build() returned <Sequential" in row.error
    assert "expected a compiled Keras model that has its weights" in row.error


def of_two(key, rows):
    return None


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"by": "shop"}, "there is no column 'shop'"),
        ({"by": []}, "expected the column of the key, or several"),
        ({"by": ["store", "store"]}, "each once"),
        ({"by": "x"}, "column 'x' is of type array<float>, by which rows do not come together"),
        ({"by": "y"}, "column 'y' is of type float"),
        ({"by": "seconds", "columns": ["store as seconds", "y"]}, "has the name of a column of the results"),
        ({"columns": ["store"]}, "the data has no other column"),
        ({"function": "train"}, "expected a function of (key, rows)"),
        ({"function": lambda rows: None}, "expected a function of (key, rows): too many positional arguments"),
        ({"build": build}, "expected a function of (key, rows, model)"),
        ({"function": go_on, "build": go_on}, "expected a function of ()"),
        ({"timeout": 0}, "expected seconds above 0"),
        ({"seed": -1}, "expected a whole number from 0 on"),
        ({"num_partitions": True}, "expected a whole number from 1 on"),
        ({"function": partial(of_two, rows=pickle.Unpickler)}, ""),
        ({"columns": ["store", "map('a', y) as m"]}, "column 'm' has type map<string,float>"),
    ],
)
def test_arguments_that_can_not_be_right_are_refused(spark, wrong, text):
    frame = stores(spark, 2).selectExpr(*wrong.pop("columns", ["*"]))
    given = {"by": "store", "function": of_two, **wrong}
    if text:
        with pytest.raises(tfos.ClusterError) as caught:
            tfos.fit_each(frame, given.pop("by"), given.pop("function"), **given)
        assert text in str(caught.value)


def test_a_function_that_can_not_be_sent_is_refused(spark):
    def of_session(store, rows):
        return spark

    with pytest.raises(SpecError, match="the function can't be sent to the executors"):
        tfos.fit_each(stores(spark, 2), "store", of_session)


def test_a_stream_is_refused(spark):
    stream = spark.readStream.format("rate").load()
    with pytest.raises(SpecError, match="use it in foreachBatch"):
        tfos.fit_each(stream, "value", of_two)


KEYS = [
    ("a.b", 1, True, datetime.date(2026, 1, 2), Decimal("1.50"), bytearray(b"\x00"), datetime.datetime(2026, 1, 2, 3)),
    ("a.b", 1, True, datetime.date(2026, 1, 2), Decimal("1.50"), bytearray(b"\x00"), None),
    (None, 1, False, None, Decimal("1.51"), None, datetime.datetime(2026, 1, 2, 3)),
    (None, None, None, None, None, None, None),
]


def key_of(row):
    """Return the columns of a key; Spark before 4.1 returns bytes as a bytearray."""
    return [bytes(each) if isinstance(each, bytearray) else each for each in row[:7]]


@pytest.mark.slow
def test_keys_of_several_columns_of_all_types(spark):
    names = ["s", "i", "b", "d", "n", "y", "odd name.t"]
    types = ["string", "int", "boolean", "date", "decimal(5,2)", "binary", "timestamp"]
    rows = [(*key, float(number)) for key in KEYS for number in range(3)]
    schema = ", ".join(f"`{name}` {kind}" for name, kind in zip(names, types, strict=True))
    frame = spark.createDataFrame(rows, f"{schema}, x double")

    def of_key(key, rows):
        assert isinstance(key, tuple)
        assert list(rows) == ["x"]
        return {"columns": len(key), "sum": rows["x"].sum(), "nulls": sum(each is None for each in key)}

    found = tfos.fit_each(frame, names, of_key).collect()
    assert sorted(str(key_of(row)) for row in found) == sorted(map(str, map(key_of, KEYS)))
    assert {row.error for row in found} == {None}
    assert all(row.rows == 3 and row.metrics["sum"] == 3 and row.metrics["columns"] == 7 for row in found)
    assert sorted(row.metrics["nulls"] for row in found) == [0, 1, 3, 7]


@pytest.mark.slow
@pytest.mark.parametrize("one_model", [False, True])
def test_results_do_not_depend_on_where_and_after_which_others_a_key_is_trained(spark, one_model):
    options = {"function": go_on, "build": build} if one_model else {"function": train}
    frame = stores(spark, 6)

    def losses(frame, **more):
        found = by_store(tfos.fit_each(frame, "store", **options, **more))
        assert not [row.error for row in found.values() if row.error]
        return {store: row.metrics["loss"] for store, row in found.items()}

    first = losses(frame, num_partitions=1)
    assert losses(frame.orderBy(f.desc("y")).where("store > 2"), num_partitions=3) == {
        store: loss for store, loss in first.items() if store > 2
    }
    assert losses(frame, num_partitions=1, seed=1) != first


def counted(directory, bad, store, rows):
    """Train nothing; count the calls for each store in a directory."""
    Path(directory, f"{store}-{time.monotonic_ns()}").touch()
    if store == bad:
        raise ValueError("not this time")
    return {"sum": float(rows["y"].sum())}


def calls(directory):
    return sorted(int(each.name.partition("-")[0]) for each in Path(directory).iterdir())


def test_a_second_call_goes_on_with_the_keys_that_are_missing(spark, tmp_path):
    directory, output = tmp_path / "calls", str(tmp_path / "output")
    directory.mkdir()
    flag = tmp_path / "fails"
    flag.touch()

    def of_store(store, rows, where=str(directory), fails=str(flag)):
        return counted(where, 2 if Path(fails).exists() else None, store, rows)

    frame = stores(spark, 4)
    first = by_store(tfos.fit_each(frame.where("store < 3"), "store", of_store, output=output))
    assert [store for store, row in first.items() if row.error] == [2]
    assert calls(directory) == [0, 1, 2]
    flag.unlink()
    again = tfos.fit_each(frame, "store", of_store, output=output, num_partitions=3)
    assert by_store(again)[0] == first[0]
    assert calls(directory) == [0, 1, 2, 2, 3]
    assert again.where("error is not null").count() == 0  # trains none
    more = frame.union(frame.where("store = 1 and y < 2"))
    assert by_store(tfos.fit_each(more, "store", of_store, output=output))[1].rows == 9
    assert calls(directory) == [0, 1, 1, 2, 2, 3]
    assert spark.read.parquet(output).select("store", "rows").orderBy("store").collect() == [
        (0, 8),
        (1, 9),
        (2, 8),
        (3, 8),
    ]

    for function, columns, options, text in (
        (of_two, ["*"], {}, "results with another function: give another directory"),
        (of_store, ["store", "y"], {}, "another columns"),
        (of_store, ["*"], {"seed": 3}, "another seed"),
        (partial(of_store, fails="/x"), ["*"], {}, "another function"),
    ):
        with pytest.raises(SpecError) as caught:
            tfos.fit_each(frame.selectExpr(*columns), "store", function, output=output, **options)
        assert text in str(caught.value)


@pytest.mark.masters("local-cluster")
def test_an_executor_that_is_killed_in_the_midst_costs_the_keys_that_it_trained(spark, tmp_path):
    def of_store(store, rows, where=str(tmp_path)):
        Path(where, "calls", f"{store}-{time.monotonic_ns()}").touch()
        if store == 7 and not Path(where, "killed").exists():
            Path(where, "killed").touch()
            executor = next(each for each in psutil.Process().parents() if each.name() == "java")
            executor.kill()
            time.sleep(600)  # ends with its Spark worker
        return {"sum": float(rows["y"].sum())}

    (tmp_path / "calls").mkdir()
    fitted = tfos.fit_each(stores(spark, 20), "store", of_store, output=str(tmp_path / "output"), num_partitions=2)
    found = by_store(fitted)
    assert (tmp_path / "killed").exists()
    assert sorted(found) == list(range(20))
    assert {row.error for row in found.values()} == {None}
    made = calls(tmp_path / "calls")
    assert made.count(7) == 2
    assert len(made) <= 22  # that one, and the one beside it at that moment
    wait_for(lambda: not forks(), 20)


def forks():
    return [each.pid for each in psutil.process_iter(["name"]) if each.info["name"] == PROCESS]


@pytest.mark.slow
def test_memory_stays_level(spark):
    def of_store(store, rows, model=None):
        if model is not None:
            model.fit(rows["x"], rows["y"], batch_size=4, verbose=0)
        own = psutil.Process()
        return {
            "own": own.memory_info().rss / 2**20,
            "server": own.parent().memory_info().rss / 2**20,
            "at": time.time(),
        }

    for options in ({}, {"build": build}):
        rows = tfos.fit_each(stores(spark, 60), "store", of_store, num_partitions=1, **options).collect()
        metrics = sorted((row.metrics for row in rows), key=lambda each: each["at"])
        for name in ("own", "server"):
            assert metrics[-1][name] - metrics[15][name] < 10  # MiB; a model that is compiled anew leaves 3.6 each time


@pytest.mark.slow
def test_a_task_that_is_cancelled_ends_its_processes(spark):
    def for_ever(store, rows):
        time.sleep(600)

    def collect():
        spark.sparkContext.setJobGroup("each", "endless", interruptOnCancel=True)
        with pytest.raises(Exception, match="cancelled"):
            tfos.fit_each(stores(spark, 2), "store", for_ever).collect()

    thread = Thread(target=collect)
    thread.start()
    wait_for(forks, 60)
    spark.sparkContext.cancelJobGroup("each")
    thread.join(60)
    wait_for(lambda: not forks(), 30)

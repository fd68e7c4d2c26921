"""The manifests that whole clusters write, for each way in which rows come to a program."""

import json
import os
import signal
import subprocess
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import tensorflowonspark as tfos
from tensorflowonspark.cli import main
from tensorflowonspark.ml import KerasEstimator, KerasModel
from tests.support.coordinated import Loop, coordinated
from tests.support.programs import small_frame
from tests.support.tables import make_delta, make_iceberg, rows_of

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(240)]
COLUMNS = {"features": "list<element: float>", "label": "float", "id": "int64"}


def manifest_of(path, capsys):
    """Return what ``tfos show --json`` prints."""
    assert main(["show", "--json", str(path)]) == 0
    return json.loads(capsys.readouterr().out)


def fit(args, ctx):
    """Train with Keras; write checkpoints and exports."""
    import keras

    keras.utils.set_random_seed(7)
    checkpoint = ctx.checkpoint(f"{args['directory']}/checkpoints", wait=args.get("wait", False))
    with ctx.strategy().scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    rows = ctx.dataset(16, features="features", label="label", seed=np.int64(5))

    class Kill(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1 and args.get("kill") and ctx.attempt == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    model.fit(rows, epochs=args.get("epochs", 1), callbacks=[Kill(), checkpoint.callback()], verbose=0)
    for name in ("model", "model.keras"):
        ctx.export(model, f"{args['directory']}/{name}")


def test_checkpoint_export_and_report_have_the_same_manifest(spark, tmp_path, capsys):
    args = {"directory": str(tmp_path), "password": "hunter2"}
    frame = small_frame(spark, [30, 11])
    settings = {"num_workers": 2, "env": {"API_KEY": "hunter2"}}
    with tfos.Cluster(spark, fit, args, dashboard=tfos.Dashboard(report=tmp_path / "run.html"), **settings) as cluster:
        cluster.train(frame.where("id < 35"), validation=frame.where("id >= 35"), cache="memory")
    places = ["checkpoints", "model", "model.keras", "run.html"]
    found, *others = (manifest_of(tmp_path / name, capsys) for name in places)
    assert found.pop("checkpoint") == {"step": 3, "epoch": 1, "batch": 0}
    written = [each.pop("written") for each in (found, *others)]
    assert written == sorted(written)
    assert all(each == found for each in others)
    assert found["program"]["name"] == "fit"
    assert found["program"]["file"] == str(Path(__file__).resolve())
    assert set(found["versions"]) >= {"tensorflowonspark", "python", "spark", "java", "numpy", "pyarrow"}
    assert found["versions"]["tensorflow"] == version("tensorflow")
    assert (found["backend"], found["workers"], found["restarts"], found["seed"]) == ("tensorflow", 2, 0, 7)
    assert (found["settings"], found["not_recorded"]) == ({"num_workers": 2}, ["env", "report"])
    data = found["data"].pop("0")
    assert not found["data"]
    assert (data["source"], data["rows"], data["columns"], data["seed"]) == ("spark", 35, COLUMNS, 5)
    assert data["validation"]["rows"] == 6
    assert {data["checksum"], data["validation"]["checksum"]}.isdisjoint({None, ""})
    assert (data["settings"], data["not_recorded"]) == ({"cache": "memory"}, ["validation"])
    contents = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(b"hunter2" in each for each in contents)


def test_a_stage_that_an_estimator_has_trained_keeps_its_manifest(spark, tmp_path, capsys, caplog):
    def build():
        import keras

        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    columns = {"featuresCol": "features", "labelCol": "label"}
    model = KerasEstimator(build, numWorkers=1, epochs=1, verbose=0, **columns).fit(small_frame(spark, [30, 11]))
    model.save(str(tmp_path / "stage"))
    found = manifest_of(tmp_path / "stage", capsys)
    assert (found["workers"], found["data"]["0"]["rows"], found["seed"]) == (1, 41, 0)
    KerasModel.load(str(tmp_path / "stage")).copy().save(str(tmp_path / "again"))
    assert manifest_of(tmp_path / "again", capsys) == found
    (tmp_path / "again" / "manifest.json").write_text("{")
    KerasModel.load(str(tmp_path / "again")).save(str(tmp_path / "without"))
    assert "again: its manifest.json can't be read, and is left out" in caplog.text
    assert main(["show", str(tmp_path / "without")]) == 2


def test_equal_rows_have_equal_checksums_and_a_run_has_its_own_rows(spark, tmp_path, capsys):
    frame = small_frame(spark, [30, 11])
    found = []
    for name, rows in (("a", frame), ("b", frame), ("c", frame.where("id != 3"))):
        tfos.run(spark, fit, {"directory": str(tmp_path / name)}, data=rows)
        found.append(manifest_of(tmp_path / name / "model", capsys)["data"]["0"])
    assert found[0] == found[1]
    assert [each["rows"] for each in found] == [41, 41, 40]
    assert found[0]["checksum"] != found[2]["checksum"]


def save_after_reading(args, ctx):
    """Read files of each kind, one pass each, and save."""
    import tensorflow as tf

    for path, read in (("parquet", ctx.read_parquet), ("records", ctx.read_tfrecord)):
        for _ in read(args[path], cache=None).batches(16, shuffle=False):
            pass
    ctx.read_delta(args["delta"])
    ctx.read_delta(args["delta"], version=0)
    ctx.read_iceberg(args["iceberg"], cache=None)
    ctx.checkpoint(args["directory"]).save(tf.train.Checkpoint(x=tf.Variable(1.0)), 1)


@pytest.mark.slow
def test_files_have_their_rows_and_tables_their_versions(spark, tmp_path, capsys):
    from deltalake import write_deltalake

    args = {name: str(tmp_path / name) for name in ("parquet", "records", "delta", "directory")}
    pq.write_table(rows_of(range(100)), args["parquet"])
    tfos.write_tfrecord(small_frame(spark, [30, 11]), args["records"])
    make_delta(args["delta"], range(200))
    write_deltalake(args["delta"], rows_of(range(200, 300)), mode="append")
    args["iceberg"] = make_iceberg(tmp_path, range(300))
    tfos.run(spark, save_after_reading, args, num_workers=2)
    found = manifest_of(args["directory"], capsys)["data"]
    assert {name: each["rows"] for name, each in found.items()} == {
        "ctx.read_parquet": 100,
        "ctx.read_tfrecord": 41,
        "ctx.read_delta": 300,
        "ctx.read_delta 3": 200,
        "ctx.read_iceberg": 300,
    }
    versions = [(each.get("table"), each.get("version")) for each in found.values()]
    assert versions[2:4] == [(args["delta"], 1), (args["delta"], 0)]
    assert found["ctx.read_iceberg"]["table"] == args["iceberg"]
    assert found["ctx.read_iceberg"]["snapshot"] > 0
    assert all(each["columns"] and each["checksum"] for each in found.values())


def each_feed(directory, ctx):
    """Save after the first step of each feed, and at the end of the second."""
    import tensorflow as tf

    state, checkpoint = tf.train.Checkpoint(x=tf.Variable(1.0)), ctx.checkpoint(directory, keep=9)
    for number, feed in enumerate(ctx.feeds()):
        batches = feed.batches(8, features="id")
        for step, _ in enumerate(batches):
            if not step and number < 2:
                checkpoint.save(state, 10 * number)
        if number == 2:
            next(iter(batches))  # a second epoch, before which all rows are there
        checkpoint.save(state, 10 * number + 9)


@pytest.mark.slow
def test_each_feed_is_kept_and_the_rows_of_a_stream_are_not_known(spark, tmp_path, capsys):
    frame = small_frame(spark, [30, 11])
    with tfos.Cluster(spark, each_feed, str(tmp_path), num_workers=1) as cluster:
        cluster.train(frame)
        cluster.train(frame, cache=None)
        cluster.train(frame.drop("label"), start="first_rows")
    steps = {int(path.name.split("-")[1]): manifest_of(path, capsys)["data"] for path in tmp_path.iterdir()}
    rows = {step: {name: each["rows"] for name, each in found.items()} for step, found in steps.items()}
    assert rows == {
        0: {"0": 41},
        9: {"0": 41},
        10: {"0": 41, "1": None},
        19: {"0": 41, "1": None},
        29: {"0": 41, "1": None, "2": 41},
    }
    assert steps[29]["1"]["checksum"] is None
    assert steps[29]["2"]["checksum"]
    assert list(steps[29]["2"]["columns"]) == ["features", "id"]
    assert steps[29]["1"]["settings"] == {"cache": None}


def without_data(directory, ctx):
    """Save a model that has not trained."""
    import keras

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    ctx.checkpoint(directory).save(model, 1)


@pytest.mark.slow
def test_without_data_on_jax(spark, tmp_path, capsys):
    tfos.run(spark, without_data, str(tmp_path), env={"KERAS_BACKEND": "jax"})
    found = manifest_of(tmp_path, capsys)
    assert (found["data"], found["seed"], found["backend"]) == ({}, None, "jax")
    assert "jax" in found["versions"]
    assert "tensorflow" not in found["versions"]


@pytest.mark.slow
def test_the_coordinator_of_parameter_servers_writes_it(spark, tmp_path, capsys):
    def chief(directory, ctx, coordinator):
        import tensorflow as tf

        loop, feed = Loop(coordinator), ctx.feed()
        loop.to_the_end(feed, iter(loop.dataset(feed)))
        ctx.checkpoint(directory).save(tf.train.Checkpoint(x=loop.trained), 1)

    sizes = {"num_workers": 1, "num_ps": 1, "chief": True}
    with tfos.Cluster(spark, coordinated(chief), str(tmp_path), **sizes) as cluster:
        cluster.train(small_frame(spark, [30, 11]))
    found = manifest_of(tmp_path, capsys)
    assert (found["workers"], found["nodes"]) == (2, "ps, chief, 1 worker")
    assert (found["data"]["0"]["rows"], found["data"]["0"]["seed"]) == (41, 0)
    assert found["data"]["0"]["checksum"]


def said(caplog):
    """Return what the driver's console has shown of resuming."""
    lines = [record.getMessage() for record in caplog.records]
    return [line.partition("resumed from ")[2] for line in lines if "resumed from " in line]


SCRIPT = """
import tensorflow as tf
import tensorflowonspark as tfos

ctx = tfos.context()
state, checkpoint = tf.train.Checkpoint(x=tf.Variable(1.0)), ctx.checkpoint({directory!r})
rows = ctx.dataset(8, features="id")
step = checkpoint.restore(state)
checkpoint.save(state, step + 1)
"""


@pytest.mark.slow
def test_a_resume_with_another_program_or_schema_names_the_difference(spark, tmp_path, capsys, caplog):
    tree = tmp_path / "tree"
    tree.mkdir()
    script = tree / "train.py"
    git = ["git", "-C", str(tree), "-c", "user.name=Ann", "-c", "user.email=ann@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    frame = small_frame(spark, [30, 11])

    def resumed(rows):
        caplog.clear()
        tfos.run_script(spark, script, num_workers=2, data=rows)
        return said(caplog)

    directory = str(tmp_path / "checkpoints")
    script.write_text(SCRIPT.format(directory=directory))
    for words in (["add", "."], ["commit", "-q", "-m", "begin"]):
        subprocess.run([*git, *words], check=True)
    assert resumed(frame) == []
    assert resumed(frame) == []  # the same again
    script.write_text(script.read_text() + "\nprint('more')\n")
    (line,) = resumed(frame.withColumn("id", frame["id"].cast("int")))
    revision = manifest_of(directory, capsys)["program"]["revision"]
    assert line == (
        f"step 2, and since it was written: the program's file {script} has changed; program.revision is {revision}, "
        f"was {revision.removesuffix('-dirty')}; column 'id' is int32, was int64"
    )
    (path,) = Path(directory).glob("step-00000003-*")
    found = json.loads((path / "complete.json").read_text())["files"]
    assert "manifest.json" in found


@pytest.mark.slow
def test_a_restart_within_a_run_says_nothing_and_is_counted(spark, tmp_path, capsys, caplog):
    args = {"directory": str(tmp_path), "kill": True, "epochs": 2, "wait": True}
    with tfos.Cluster(spark, fit, args, num_workers=2, restarts=1) as cluster:
        cluster.train(small_frame(spark, [30, 11]))
    assert said(caplog) == []
    found = manifest_of(tmp_path / "checkpoints", capsys)
    assert (found["restarts"], found["settings"]) == (1, {"num_workers": 2, "restarts": 1})
    assert found["data"]["0"]["rows"] == 41


@pytest.mark.slow
def test_an_old_checkpoint_without_one_is_resumed(spark, tmp_path, capsys, caplog):
    directory = str(tmp_path / "checkpoints")

    def without(args, ctx):
        import tensorflow as tf

        checkpoint = ctx.checkpoint(directory)
        if args == "old":
            checkpoint._saving._record = None
        step = checkpoint.restore(state := tf.train.Checkpoint(x=tf.Variable(1.0)))
        checkpoint.save(state, step + 1)
        return step

    assert tfos.run(spark, without, "old").chief == 0
    assert main(["show", directory]) == 2
    assert "has no manifest: an earlier version" in capsys.readouterr().err
    assert tfos.run(spark, without, "new").chief == 1
    assert said(caplog) == []
    assert main(["show", directory]) == 0

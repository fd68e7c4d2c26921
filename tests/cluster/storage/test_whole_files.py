"""On a mount that refuses seeks and appends, as volumes of Databricks do: what is written there, or refused by name."""

import ctypes.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tensorflowonspark as tfos
from tests.support import ladder
from tests.support.paths import ROOT, SUPPORT

_EPOCHS = 2
_BY_CLUSTER = {"`log_dir`, a report"}
_BY_SPARK = {
    "stages of Spark ML: `save`, `load`; `checkpointDir`",
    'TFRecord: `write_tfrecord`, `read_tfrecord`, `format("tfrecord")`',
}


@pytest.fixture(scope="module")
def volume(tmp_path_factory):
    if not ctypes.util.find_library("fuse3") or os.geteuid():
        ladder.skip("mounting needs root and libfuse3 (Debian: apt install libfuse3-3)")
    folder, mount = tmp_path_factory.mktemp("files"), tmp_path_factory.mktemp("volume")
    command = [sys.executable, str(SUPPORT / "whole_files.py"), str(folder), str(mount)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout.readline() == "up\n"
        yield mount
        server.stdin.close()


def _documented():
    """Return what docs/storage.md says of each kind of write."""
    section = (
        (ROOT / "docs/storage.md").read_text().partition("## Places without random writes")[2].partition("\n## ")[0]
    )
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")][2:]
    return dict(rows)


def _model():
    import keras

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model


def _by_callback(place, ctx):
    """Return functions that make callbacks, by what they show."""
    from keras import callbacks

    saves, events = "`model.save`, `ModelCheckpoint`: `.keras`, `.h5`, `.weights.h5`", f"{place}/events-{ctx.index}"
    log = f"{place}/log-{ctx.index}.csv"
    return [
        (saves, lambda: callbacks.ModelCheckpoint(f"{place}/model.keras")),
        (saves, lambda: callbacks.ModelCheckpoint(f"{place}/model.h5")),
        (saves, lambda: callbacks.ModelCheckpoint(f"{place}/a.weights.h5", save_weights_only=True)),
        (
            "`BackupAndRestore`",
            lambda: callbacks.BackupAndRestore(f"{place}/backup-{ctx.index}", delete_checkpoint=False),
        ),
        (
            "`TensorBoard`, with and without `ctx.tensorboard_directory`",
            lambda: callbacks.CallbackList(
                [callbacks.TensorBoard(events), callbacks.TensorBoard(ctx.tensorboard_directory(f"{events}-copied"))]
            ),
        ),
        (
            "`ctx.checkpoint(...)`: `callback`, `save`, `restore`",
            lambda: ctx.checkpoint(f"{place}/checkpoints").callback(),
        ),
        ("`CSVLogger`", lambda: callbacks.CSVLogger(log)),
        ("`CSVLogger(append=True)`", lambda: callbacks.CSVLogger(log, append=True)),
    ]


def _written(place, ctx):
    """Return the errors of each kind of write; those of callbacks come before the first step, or end the program."""
    import keras
    import numpy as np
    import tensorflow as tf

    model, x, y, steps, errors = _model(), np.ones((8, 2), "f4"), np.ones(8, "f4"), [], {}

    def note(what, act):
        errors.setdefault(what, [])
        steps.clear()
        try:
            act()
        except Exception as error:
            if steps:
                raise
            errors[what].append(f"{type(error).__name__}: {error}")

    counted = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda *_, **__: steps.append(1))
    for what, make in _by_callback(place, ctx):
        note(what, lambda make=make: model.fit(x, y, verbose=0, epochs=_EPOCHS, callbacks=[make(), counted]))
    note("`model.save`, `ModelCheckpoint`: `.keras`, `.h5`, `.weights.h5`", lambda: model.save(f"{place}/saved.keras"))
    for name in ("exported.keras", "exported.h5", "exported") * 2:  # the second one replaces the first
        exported = f"{place}/{name}"
        note("`ctx.export`: `.keras`, `.h5`, SavedModel", lambda exported=exported: ctx.export(model, exported))
    native = f"{place}/native-{ctx.index}"

    def write_natively():
        tf.train.Checkpoint(model=model).write(f"{native}/one")
        with tf.io.TFRecordWriter(f"{native}/records") as writer:
            writer.write(b"one")
            writer.flush()
            writer.write(b"two")

    note("`tf.train.Checkpoint`, `tf.io.TFRecordWriter`", write_natively)
    return errors


def _restored(place, ctx):
    """Return the shapes of the models that were saved, and the epochs of the newest checkpoint."""
    import keras

    names = "exported.keras", "exported.h5", "model.keras", "model.h5", "saved.keras"
    shapes = {keras.models.load_model(f"{place}/{name}", compile=False).output_shape for name in names}
    _model().load_weights(f"{place}/a.weights.h5")
    return shapes, ctx.checkpoint(f"{place}/checkpoints").latest().epoch


@pytest.mark.timeout(240)
@pytest.mark.masters("local")
def test_what_nodes_write(spark, volume):
    place, expected = str(volume / "nodes"), _documented()
    Path(place).mkdir()
    report = tfos.Dashboard(report=f"{place}/report.html")
    found = tfos.run(spark, _written, place, num_workers=2, logs=f"{place}/logs", dashboard=report)
    for index in (0, 1):
        errors = found[f"worker:{index}"]
        assert set(errors) == set(expected) - _BY_CLUSTER - _BY_SPARK
        assert {what for what in errors if errors[what]} == {what for what in errors if expected[what] != "works"}
        refusal = f"OSError: [Errno 95] Operation not supported: '{place}/log-{index}.csv'"
        assert errors["`CSVLogger(append=True)`"] == [refusal]
    assert {each.name for each in Path(place, "logs").iterdir()} == {"worker-0.log", "worker-1.log", "driver.log"}
    assert "INFO all nodes are up: 2 workers\n" in Path(place, "logs", "driver.log").read_text()
    assert "</html>" in Path(place, "report.html").read_text()
    for folder in ("events-0", "events-0-copied"):
        assert [each for each in Path(place, folder).rglob("*tfevents*") if each.stat().st_size]
    assert not list(Path(place).rglob(".*")), "what was staged is still there"
    (restored,) = tfos.run(spark, _restored, place, num_workers=1).values()
    assert restored == ({(None, 1)}, _EPOCHS)


@pytest.mark.timeout(240)
@pytest.mark.masters("local")
def test_what_spark_writes(spark, volume):
    assert {_documented()[each] for each in _BY_SPARK} == {"works"}
    place, rows = f"file://{volume}/spark", 16
    data = [([float(number), 1.0], float(number % 2)) for number in range(rows)]
    frame = spark.createDataFrame(data, "features array<float>, label float")
    tfos.register_tfrecord(spark)
    for _ in range(2):
        tfos.write_tfrecord(frame, f"{place}/one", mode="overwrite")
        frame.write.format("tfrecord").mode("append").save(f"{place}/two")
    assert tfos.read_tfrecord(spark, f"{place}/one").count() == rows
    assert tfos.read_tfrecord(spark, f"{place}/two").count() == 2 * rows
    estimator = tfos.ml.KerasEstimator(_model, batchSize=4, numWorkers=2, checkpointDir=f"{place}/checkpoints")
    fitted = estimator.fit(frame)
    for _ in range(2):
        estimator.write().overwrite().save(f"{place}/estimator")
        fitted.write().overwrite().save(f"{place}/model")
    assert tfos.ml.KerasEstimator.load(f"{place}/estimator").getBatchSize() == 4
    assert tfos.ml.KerasModel.load(f"{place}/model").transform(frame).count() == rows

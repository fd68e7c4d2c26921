"""On a real HDFS: what goes there, and how it is found."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest

import tensorflowonspark as tfos
from tensorflowonspark import storage
from tensorflowonspark.errors import StorageError
from tests.support import hadoop
from tests.support.paths import ROOT
from tests.support.processes import has_ended
from tests.support.programs import wait_for
from tests.support.stored import check_directory, check_file, names_below, write_model


@pytest.fixture
def name_service(hdfs, hadoop_free):
    """The settings of an HA name service, whose first name node is dead."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        dead = free.getsockname()[1]
    return {
        "dfs.nameservices": "Both",
        "dfs.ha.namenodes.Both": "nn1,nn2",
        "dfs.namenode.rpc-address.Both.nn1": f"127.0.0.1:{dead}",
        "dfs.namenode.rpc-address.Both.nn2": hdfs.removeprefix("hdfs://"),
        "dfs.client.failover.proxy.provider.Both": (
            "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
        ),
    }


def test_a_directory_and_a_file_go_there_and_come_back(hdfs, tmp_path):
    check_directory(f"{hdfs}/models/there and back", tmp_path)
    assert names_below(f"{hdfs}/models", directories=True) == []
    check_file(f"{hdfs}/files", tmp_path)


def test_what_stood_there_stays_when_the_upload_fails(hdfs, monkeypatch):
    def write(local):
        write_model(["saved_model.pb"])(local)
        (Path(local) / "assets").mkdir()  # which stays empty, as in most saved models

    place = f"{hdfs}/stays/model"
    storage.publish(place, write)
    files, _ = storage.file_system(place)
    monkeypatch.setattr(type(files), "mv", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        storage.publish(place, write_model(["other"]))
    left = ["model", "model/assets", "model/saved_model.pb"]
    assert names_below(f"{hdfs}/stays", directories=True) == left


def test_a_name_service_with_a_dead_name_node(name_service, tmp_path):
    storage.use(name_service)
    storage.publish("hdfs://Both/ha/note", lambda local: Path(local).write_text("hello") and None)
    assert storage.fetch("hdfs://Both/ha/note", str(tmp_path / "note"))
    assert (tmp_path / "note").read_text() == "hello"


def test_the_files_in_hadoop_conf_dir(name_service, tmp_path, monkeypatch):
    hadoop.write_settings(tmp_path / "core-site.xml", {"fs.defaultFS": "hdfs://Both/"})
    hadoop.write_settings(tmp_path / "hdfs-site.xml", name_service)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert storage.default_fs() == "hdfs://Both"
    storage.publish("hdfs:///conf/note", lambda local: Path(local).write_text("hello") and None)
    assert names_below("hdfs://Both/conf") == ["note"]


def test_a_name_that_no_setting_knows(hdfs, hadoop_free):
    files, _ = storage.file_system("hdfs://nowhere/file")
    assert files.port == 8020
    with pytest.raises(StorageError, match="fs.defaultFS is not set"):
        storage.file_system("hdfs:///file")


def test_a_name_node_that_is_down(hadoop_free):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"hdfs://127.0.0.1:{free.getsockname()[1]}/file"
    with pytest.raises(StorageError, match=f"^{place}: .*refused"):
        storage.fetch(place, "unused")


def test_what_the_name_node_refuses(hdfs, hadoop_free, monkeypatch):
    monkeypatch.setenv("SPARK_USER", "ann")  # who the executor's own user is doesn't matter
    monkeypatch.setenv("HADOOP_USER_NAME", "")  # so that it is put back as it was
    monkeypatch.delenv("HADOOP_USER_NAME")
    storage.use({"dfs.client.use": "an adapter of its own"})
    with pytest.raises(StorageError, match="^hdfs://.*/refused/note: .*Permission denied: user=ann"):
        storage.publish(f"{hdfs}/refused/note", lambda local: Path(local).write_text("hello") and None)


def export(args, ctx):
    """Write a model to the default file system; return how the node sees that."""
    import keras

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    ctx.export(model, ctx.absolute_path(args))
    return ctx.default_fs, ctx.absolute_path("relative")


@pytest.mark.masters("local-cluster")
def test_a_node_has_the_settings_of_the_session(spark, name_service, tmp_path):
    settings = {**name_service, "fs.defaultFS": "hdfs://Both"}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        default, relative = tfos.run(spark, export, "/nodes/model")["worker:0"]
    finally:
        for name in settings:
            spark.conf.unset(name)
    assert default == "hdfs://Both"
    assert relative.startswith("hdfs://Both/user/")
    storage.use(name_service)
    assert "saved_model.pb" in names_below("hdfs://Both/nodes/model")


def log_something(args, ctx):
    import tensorflow as tf

    with tf.summary.create_file_writer(ctx.tensorboard_directory(args)).as_default():
        tf.summary.scalar("loss", 0.5, step=1)
    return list(ctx.feeds())


@pytest.mark.slow
@pytest.mark.masters("local")
def test_tensorboard_s_logs(spark, hdfs):
    place = f"{hdfs}/logs"
    with tfos.Cluster(spark, log_something, f"{place}/run-1", tensorboard=place) as cluster:
        wait_for(lambda: cluster.tensorboard_url)
        runs = f"{cluster.tensorboard_url.rstrip('/')}/data/runs"
        wait_for(lambda: json.loads(urlopen(runs, timeout=30).read()) == ["run-1"], 90)
    (file,) = (name for name in names_below(place) if "tfevents" in name)
    assert storage.file_system(place)[0].size(f"/logs/{file}") > 0


@pytest.mark.masters("local")
def test_saved_stages(spark, hdfs, hadoop_free):
    import keras

    from tensorflowonspark.ml import KerasModel

    model = KerasModel.from_keras(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
    model.write().overwrite().save(f"{hdfs}/stages/one")
    assert KerasModel.load(f"{hdfs}/stages/one")._bundle == model._bundle
    spark.conf.set("fs.defaultFS", hdfs)
    try:  # as Spark's own files, ours go where Hadoop looks
        model.write().overwrite().save("/stages/two")
        assert KerasModel.load("/stages/two")._bundle == model._bundle
    finally:
        spark.conf.unset("fs.defaultFS")
    assert {"metadata", "model/model.keras"} < set(names_below(f"{hdfs}/stages/two", directories=True))


def test_the_mini_cluster_ends_with_who_started_it(hdfs, tmp_path):
    program = (
        "from tests.support.hadoop import MiniCluster\n"
        f"print(MiniCluster({str(tmp_path)!r}).process.pid, flush=True); input()"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", program]
    starter = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    cluster = psutil.Process(int(starter.stdout.readline()))
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    starter.stdin.close()
    starter.stdout.close()
    wait_for(lambda: has_ended(cluster), 10)

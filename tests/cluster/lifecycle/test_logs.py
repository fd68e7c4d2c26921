"""What the driver shows of real nodes, and the files of their output."""

import json
import logging
import os
import re
import signal
from pathlib import Path

import pytest

import tensorflowonspark as tfos
from tensorflowonspark import storage
from tensorflowonspark.driver import console


def talks(args, ctx):
    print("plain of", ctx.index, flush=True)
    print("WARNING:root:both are slow:", ctx.index, flush=True)
    if ctx.index:
        os.write(1, b"WARNING:root:only this one \xff\n")


@pytest.mark.smoke
@pytest.mark.masters("local")
def test_of_two_workers_the_chiefs_lines_and_new_warnings_are_shown(spark, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(console, "_hinted", [])
    caplog.set_level("INFO", "tensorflowonspark.nodes")
    tfos.run(spark, talks, num_workers=2, logs=str(tmp_path / "logs"))
    lines = {line for line in caplog.messages if line.startswith("[")}
    shared = {line for line in lines if "both are slow" in line}
    assert len(shared) == 1 or shared == {f"[worker:{index}] WARNING:root:both are slow: {index}" for index in (0, 1)}
    assert lines - shared == {
        "[worker:0] plain of 0",
        "[worker:1] WARNING:root:only this one \ufffd",
        '[training] only the lines of the chief are shown here: logs=Logs(show="all") (--show all) shows those of all '
        "nodes, "
        f"they are in {tmp_path}/logs",
    }
    texts = {path.name: path.read_text() for path in (tmp_path / "logs").iterdir()}
    assert set(texts) == {"worker-0.log", "worker-1.log", "driver.log"}
    assert all(f"plain of {index}\n" in texts[f"worker-{index}.log"] for index in (0, 1))
    assert "INFO all nodes are up: 2 workers\n" in texts["driver.log"]


def dies(how, ctx):
    print("the last line", flush=True)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ValueError("a reason")


@pytest.mark.masters("local-cluster")
@pytest.mark.parametrize(
    ("how", "words"), [("killed", "failed: its process was ended by SIGKILL"), ("raised", "\nValueError: a reason\n")]
)
def test_the_end_of_a_node_is_in_its_file(spark, tmp_path, how, words):
    with pytest.raises(tfos.NodeError):
        tfos.run(spark, dies, how, logs=str(tmp_path))
    text = (tmp_path / "worker-0.log").read_text()
    assert "the last line\n" in text
    assert words in text.split("the last line\n")[1]
    assert "ERROR worker:0 on " in (tmp_path / "driver.log").read_text()


@pytest.mark.masters("standalone")
def test_files_in_an_object_store_and_json(spark, bucket):
    """With the credentials of the session, which this process has not been given otherwise."""
    for name, value in bucket.items():
        spark.conf.set(name, value)
    try:
        with pytest.raises(tfos.SpecError, match="log_dir='s3a://missing/logs' can't be written to"):
            tfos.run(spark, talks, logs="s3a://missing/logs")
        tfos.run(spark, talks, num_workers=2, logs=tfos.Logs(log_dir="s3a://bucket/nodes-logs", log_format="json"))
        files, within = storage.file_system("s3a://bucket/nodes-logs")
        found = {Path(path).name: files.cat(path).decode() for path in files.find(within)}
    finally:
        for name in bucket:
            spark.conf.unset(name)
        storage.use({})
    objects = {name: [json.loads(line) for line in text.splitlines()] for name, text in found.items()}
    assert set(objects) == {"worker-0.log", "worker-1.log", "driver.log"}
    events = [each["event"] for each in objects["driver.log"]]
    assert (events[0], events[-1]) == ("started", "ended")
    assert {"plain of 1"} <= {each["message"] for each in objects["worker-1.log"]}
    assert {each["node"] for each in objects["worker-1.log"]} == {"worker:1"}


@pytest.mark.slow  # compiles TensorFlow
@pytest.mark.timeout(400)  # in both nodes, which takes a minute beside two busy processes
@pytest.mark.masters("local")
def test_an_import_without_bytecode_is_one_warning_of_a_node_with_its_seconds(spark, tmp_path, caplog):
    def program(args, ctx):
        import tensorflow  # noqa: F401

    caplog.set_level(logging.WARNING, "tensorflowonspark")
    settings = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": str(tmp_path)}
    with tfos.Cluster(spark, program, num_workers=2, env=settings) as cluster:
        cluster.join()
    found = [text for text in caplog.messages if "have no bytecode, so each process compiles them anew" in text]
    nodes = [text.partition("]")[0] for text in found]  # those of the chief, and what is new of others
    assert nodes
    assert len(set(nodes)) == len(nodes), caplog.messages
    assert re.search(r"imported after \d+ s of processor time: \d+ modules .* -m compileall -q", found[0])

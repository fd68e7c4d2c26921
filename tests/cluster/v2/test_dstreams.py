"""Streams of Spark Streaming as endless feeds, and requests from outside to stop them."""

import os
import stat
import warnings
from collections import Counter
from pathlib import Path

import pytest

import tensorflowonspark as tfos
from tensorflowonspark import TFCluster, reservation
from tests.support.commands import run_python
from tests.support.programs import wait_for


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def program(args, ctx):
    feed = ctx.get_data_feed()
    rows = []
    while not feed.should_stop():
        rows += feed.next_batch(10)
    Path(args, f"rows-{ctx.task_index}").write_text(" ".join(map(str, rows)))


@pytest.mark.masters("local")
def test_a_stream_is_fed_until_somebody_asks_for_its_end(start, spark, tmp_path, home):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Spark's, that DStreams are old
        from pyspark.streaming import StreamingContext

        context = spark.sparkContext
        streaming = StreamingContext(context, 1)
    batches = [range(number * 100, number * 100 + 100) for number in range(3)]
    stream = streaming.queueStream([context.parallelize(batch, 4) for batch in batches])
    cluster = start(spark, program, str(tmp_path), 2, 0, input_mode=TFCluster.InputMode.SPARK)
    cluster.train(stream)  # returns at once: the stream begins later
    fed = []
    stream.foreachRDD(lambda rdd: fed.append(rdd.id()))  # after the feeding of the same rows
    streaming.start()
    wait_for(lambda: len(fed) == len(batches))
    address = cluster.cluster_meta["server_addr"]
    assert not cluster.server.done
    # From another process of the same user.
    line = (
        f"from tensorflowonspark import reservation; c = reservation.Client({address!r}); c.request_stop(); c.close()"
    )
    run_python(line)
    cluster.shutdown(ssc=streaming)
    assert cluster.server.done
    rows = Counter(int(row) for path in tmp_path.glob("rows-*") for row in path.read_text().split())
    assert rows == Counter(range(300))
    assert not list((home / ".tensorflowonspark").iterdir())


@pytest.mark.smoke
@pytest.mark.masters("local")
def test_only_the_user_of_the_driver_stops_a_stream(start, spark, tmp_path, home):
    cluster = start(spark, program, str(tmp_path), 1, 0, input_mode=TFCluster.InputMode.SPARK)
    address = cluster.cluster_meta["server_addr"]
    (file,) = (home / ".tensorflowonspark").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert file.stat().st_uid == os.getuid()
    assert not cluster.server.done
    with pytest.raises(
        tfos.ClusterError, match="no cluster of yours listens at nowhere:1 .*address that the driver logs"
    ):
        reservation.Client(("nowhere", 1))
    late = reservation.Client(address)
    cluster.server.stop()
    assert cluster.server.done
    cluster.shutdown()
    with pytest.raises(tfos.ClusterError, match="does not answer: its cluster has ended"):
        late.request_stop()
    late.close()


def test_the_file_of_a_driver_that_was_killed_is_no_running_cluster(home):
    directory = home / ".tensorflowonspark"
    directory.mkdir()
    (directory / "h1-4000").write_bytes(b"")
    client = reservation.Client(("h1", 4000))
    with pytest.raises(tfos.ClusterError, match=r"the driver at \('h1', 4000\) does not answer"):
        client.request_stop()
    client.close()
    switch = reservation.StopSwitch(("h1", 4000))  # which replaces the file
    assert not switch.done
    client = reservation.Client(("h1", 4000))
    client.request_stop()
    client.close()
    assert switch.done
    switch.close()
    assert switch.done
    assert not list(directory.iterdir())


@pytest.mark.masters("local")
def test_without_a_home_only_the_driver_ends_a_stream(start, spark, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(Path, "home", nowhere)
    cluster = start(spark, program, str(tmp_path), 1, 0, input_mode=TFCluster.InputMode.SPARK)
    assert "can't be stopped from outside" in caplog.text
    cluster.server.stop()
    assert cluster.server.done
    cluster.shutdown()


def nowhere():
    raise RuntimeError("Could not determine home directory.")

"""A stream of Spark Streaming as an endless feed, and its end by a word from outside."""

import os
import stat
import subprocess
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

import pytest

import tensorflowonspark as tfos
from tensorflowonspark import TFCluster, reservation, transport
from tensorflowonspark.messages import StopRequested


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
    end = time.monotonic() + 60
    while len(fed) < len(batches) and time.monotonic() < end:
        time.sleep(0.1)
    address = cluster.cluster_meta["server_addr"]
    assert not cluster.server.done
    # From another process of the same user.
    line = (
        f"from tensorflowonspark import reservation; c = reservation.Client({address!r}); c.request_stop(); c.close()"
    )
    subprocess.run([sys.executable, "-c", line], check=True)
    cluster.shutdown(ssc=streaming)
    assert cluster.server.done
    rows = Counter(int(row) for path in tmp_path.glob("rows-*") for row in path.read_text().split())
    assert rows == Counter(range(300))
    assert not list((home / ".tensorflowonspark").iterdir())


@pytest.mark.smoke
@pytest.mark.masters("local")
def test_only_who_has_the_key_stops_a_stream(start, spark, tmp_path, home):
    cluster = start(spark, program, str(tmp_path), 1, 0, input_mode=TFCluster.InputMode.SPARK)
    address = cluster.cluster_meta["server_addr"]
    (key,) = (home / ".tensorflowonspark").iterdir()
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    assert key.stat().st_uid == os.getuid()
    stranger = transport.connect(address, transport.Credentials("guessed"))
    with pytest.raises(transport.ConnectionLost):
        channel = stranger.channel()
        channel.send(StopRequested())
        channel.receive()
    stranger.close()
    assert not cluster.server.done
    with pytest.raises(
        tfos.ClusterError, match="no cluster of yours listens at nowhere:1 .*address that the driver logs"
    ):
        reservation.Client(("nowhere", 1))
    cluster.server.stop()
    assert cluster.server.done
    cluster.shutdown()


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

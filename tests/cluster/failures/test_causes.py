"""The first cause reaches whoever waits: never "Connection refused" in its place, however the race goes.

Each case runs as often as ``TFOS_TEST_ROUNDS`` says, at another moment each time.
"""

import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from threading import Thread, Timer
from types import SimpleNamespace

import psutil
import pyarrow as pa
import pytest
from pyspark.sql import functions as f

import tensorflowonspark as tfos
from tensorflowonspark.driver.sharing.manifest import node_endpoints
from tensorflowonspark.task.inference import infer_partition
from tests.support.local_cluster import local_cluster
from tests.support.processes import node_of
from tests.support.programs import wait_for

pytestmark = pytest.mark.timeout(1200)

ROUNDS = int(os.environ.get("TFOS_TEST_ROUNDS", "1"))
RAISED = 'raise LookupError("the program\'s own")'
_MORE_ROWS = 200_000_000  # than are fed before the nodes fail


def many_rows(spark):
    return spark.range(0, _MORE_ROWS, 1, 8)


def raises(delay, ctx):
    time.sleep(delay)
    raise LookupError("the program's own")


def reads_and_raises(delay, ctx):
    end = time.monotonic() + delay
    for _ in ctx.batches(100, features=["id"])():
        if time.monotonic() > end:
            raise LookupError("the program's own")


def is_killed(delay, ctx):
    time.sleep(delay)
    os.kill(os.getpid(), signal.SIGKILL)


def is_killed_later(delay, ctx):
    """Return, and be killed then."""
    Timer(delay, is_killed, (0, ctx)).start()


def one_loses_the_other(delay, ctx):
    """As under TensorFlow: one raises since its peer fails, and is the first to say so."""

    class UnavailableError(Exception):
        pass

    if ctx.index == 0:
        raise UnavailableError("connection reset by peer")
    time.sleep(0.1 + delay)
    raise LookupError("the program's own")


def serves_and(end):
    def program(delay, ctx):
        ctx.serve(lambda ids: ids * 2)
        end(delay, ctx)

    return program


BATCH = pa.record_batch({"id": pa.array(range(1000), pa.int64())})


class Endless:
    """A partition with more rows than are fed before the nodes fail."""

    def __iter__(self):
        return repeat(BATCH)


@pytest.mark.usefixtures("unchecked_frames")
@pytest.mark.parametrize("cache", ["memory", None])
@pytest.mark.parametrize(
    ("program", "words"),
    [(raises, RAISED), (is_killed, "its process was ended by SIGKILL"), (one_loses_the_other, RAISED)],
)
def test_a_node_fails_while_threads_feed_it(program, words, cache):
    for _ in range(ROUNDS):
        with pytest.raises(tfos.NodeError) as caught:
            with local_cluster(
                program, random.uniform(0, 0.6), num_workers=2, nodes=tfos.Nodes(heartbeat_timeout=60)
            ) as cluster:
                cluster.train([Endless() for _ in range(4)], cache=cache)
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (raises, RAISED),
        (is_killed, "its process was ended by SIGKILL"),
        (is_killed_later, "SIGKILL after its program had returned"),
    ],
)
def test_a_node_fails_while_threads_ask_it(monkeypatch, end, words):
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: SimpleNamespace(partitionId=lambda: 0))
    schema = pa.schema([("double", pa.int64())]).serialize().to_pybytes()

    def ask(cluster):
        targets = node_endpoints(cluster._monitor.roster.nodes[:1], cluster._address)
        for _ in infer_partition(targets, cluster._credentials, [], schema, repeat(BATCH)):
            pass

    for _ in range(ROUNDS):
        with pytest.raises(tfos.NodeError), local_cluster(serves_and(end), random.uniform(0.2, 0.8)) as cluster:
            wait_for(lambda: cluster._monitor.roster.nodes[0].program.answering)
            with ThreadPoolExecutor(4) as tasks:
                errors = [task.exception(60) for task in [tasks.submit(ask, cluster) for _ in range(4)]]
            cluster._check()
        for error in errors:
            assert isinstance(error, tfos.FeedError)
            assert words in str(error)


def fails_in_spark():
    @f.udf("long")
    def bad(number):
        if number == 77:
            raise ArithmeticError("in the DataFrame")
        return number

    return bad("id").alias("id")


def collect(frame):
    frame.collect()


def to_pandas(frame):
    frame.toPandas()


def write(frame):
    frame.write.format("noop").mode("overwrite").save()


@pytest.mark.slow
@pytest.mark.masters("local")
@pytest.mark.parametrize(
    ("program", "cache", "words"),
    [
        (raises, "disk", RAISED),
        (reads_and_raises, None, RAISED),
        (is_killed, "disk", "its process was ended by SIGKILL"),
        (is_killed, None, "its process was ended by SIGKILL"),
        (one_loses_the_other, "disk", RAISED),
    ],
)
def test_a_node_fails_while_it_is_fed(spark, program, cache, words):
    for _ in range(ROUNDS):
        with pytest.raises(tfos.NodeError) as caught:
            with tfos.Cluster(
                spark, program, random.uniform(0, 0.6), num_workers=2, nodes=tfos.Nodes(heartbeat_timeout=60)
            ) as cluster:
                cluster.train(many_rows(spark), cache=cache)
        assert words in str(caught.value)


@pytest.mark.slow
@pytest.mark.masters("local")
@pytest.mark.parametrize(
    ("act", "end", "words"),
    [
        (collect, raises, RAISED),
        (collect, is_killed, "its process was ended by SIGKILL"),
        (collect, is_killed_later, "SIGKILL after its program had returned"),
        (to_pandas, is_killed, "its process was ended by SIGKILL"),
        (write, is_killed_later, "SIGKILL after its program had returned"),
    ],
)
def test_a_node_fails_while_it_answers(spark, act, end, words):
    for _ in range(ROUNDS if act is collect else 1):
        with pytest.raises(Exception) as caught:  # noqa: PT011 - what Spark raises
            with tfos.Cluster(spark, serves_and(end), random.uniform(0.1, 0.8), num_workers=2) as cluster:
                act(cluster.inference(many_rows(spark), "double long"))
        assert words in str(caught.value)


@pytest.mark.slow
@pytest.mark.masters("local")
def test_a_dataframe_that_fails(spark):
    frame = spark.range(0, 100, 1, 4).select(fails_in_spark())
    for _ in range(ROUNDS):
        with pytest.raises(tfos.FeedError, match="ArithmeticError: in the DataFrame"):
            tfos.run(spark, lambda args, ctx: ctx.feed().rows, data=frame, num_workers=2)
        with pytest.raises(tfos.FeedError, match="ArithmeticError: in the DataFrame"):
            with tfos.Cluster(spark, lambda args, ctx: ctx.feed().rows, num_workers=2) as cluster:
                cluster.train(frame)


@pytest.mark.slow
@pytest.mark.masters("local")
def test_rows_that_a_held_task_can_not_feed(spark):
    frame = spark.range(100).select("id", f.when(f.col("id") < 90, f.col("id") > 50).alias("flag"))
    for _ in range(ROUNDS):
        with pytest.raises(tfos.FeedError, match="the column 'flag', which marks the rows to validate on, is null"):
            tfos.run(spark, lambda args, ctx: ctx.feed().rows, data=tfos.Data(frame, validation="flag"), num_workers=2)


@pytest.mark.slow
@pytest.mark.masters("local")
def test_a_job_that_is_cancelled(spark, tmp_path):
    def run(frame):
        tfos.run(spark, lambda args, ctx: ctx.feed().rows, data=frame, num_workers=2)

    def train(frame):
        with tfos.Cluster(spark, lambda args, ctx: ctx.feed().rows, num_workers=2) as cluster:
            cluster.train(frame)

    for number, entrance in enumerate([run, train] * ROUNDS):
        begun = tmp_path / str(number)  # another one for each: tasks of the last job may go on for a second

        def slowly(value, begun=begun):
            begun.touch()
            time.sleep(1)
            return value

        def cancel(begun=begun):
            wait_for(begun.exists)
            spark.sparkContext.cancelAllJobs()

        frame = spark.range(0, 100, 1, 4).select(f.udf(slowly, "long")("id").alias("id"))
        with ThreadPoolExecutor(1) as other:
            other.submit(cancel)
            with pytest.raises(tfos.ClusterError, match="cancelled"):  # a FeedError once all nodes are up
                entrance(frame)


@pytest.mark.slow
@pytest.mark.masters("standalone")
def test_an_executor_is_lost_while_it_is_fed(spark):
    for _ in range(ROUNDS):
        with pytest.raises(tfos.NodeError, match="the executor that it ran on has ended"):
            with tfos.Cluster(spark, lambda args, ctx: ctx.feed().rows) as cluster:
                executor = psutil.Process(cluster.nodes[0].jvm_pid)
                Timer(random.uniform(0.2, 1), executor.kill).start()
                cluster.train(many_rows(spark))


class Slow:
    """A partition that takes some seconds to compute."""

    def __iter__(self):
        for _ in range(300):
            time.sleep(0.01)
            yield BATCH


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked_frames")
def test_a_node_that_is_stopped_while_it_is_fed():
    """Its tasks wait for it as long as it may be silent, and no longer."""

    def program(args, ctx):
        return ctx.attempt, ctx.feed().rows

    cluster = local_cluster(program, nodes=tfos.Nodes(heartbeat_timeout=15), restarts=1)
    stopped = []

    def stop():
        wait_for(lambda: cluster._attempt.job)
        time.sleep(0.5)
        stopped.append(node_of(cluster, 0).send_signal(signal.SIGSTOP))

    Thread(target=stop).start()
    begin = time.monotonic()
    with cluster:
        cluster.train([Slow() for _ in range(4)], cache="memory")
        assert cluster.join() == {"worker:0": (1, 1_200_000)}
    assert stopped
    assert time.monotonic() - begin < 90  # heartbeat_timeout, two times feeding, and a start on a busy machine

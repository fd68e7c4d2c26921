"""Breaks of the network, after which it is whole again: a cluster goes on, or the error names the host.

``TFOS_TEST_CUTS=all make test-hosts ARGS="-s -k test_cuts"`` prints the table of docs/network.md, in 45 minutes.
"""

import os
import re
import time
from typing import NamedTuple

import pytest

import tensorflowonspark as tfos
from tests.support.host_application import Application
from tests.support.host_cluster import host_cluster, slow_fit, slow_rows
from tests.support.programs import wait_for

CUTS = (1, 5, 15, 30, 60) if os.environ.get("TFOS_TEST_CUTS") == "all" else (5, 15)  # seconds
_OUTLIVED = 5  # seconds that nothing may end
_CELL_SECONDS = 240.0
_LEFT_SECONDS = 60.0  # in which the nodes of a host that was cut off end
_SPARKS_SECONDS = 60.0  # after which its master gives a worker up; so long after a cut it may hear nothing of it either
_ROWS = 2000


def take(args, ctx):
    return [int(each) for batch in ctx.batches(100, features=["id"]) for each in batch["id"]]


def feed(spark, directory, restarts):
    """Feed rows for ten seconds; each must arrive once."""

    def wait(batches):
        for batch in batches:
            (directory / "begun").touch()
            time.sleep(0.5)
            yield batch

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 50)
    data = spark.range(0, _ROWS, 1, 4)
    data = data.selectExpr("id", "array_repeat(id, 1000) as padding").mapInArrow(wait, "id long, padding array<long>")
    with tfos.Cluster(spark, take, num_workers=2, restarts=restarts) as cluster:
        cluster.train(data)
        results = cluster.join()
    assert sorted(sum(results.values(), [])) == list(range(_ROWS))


def train(args, ctx):
    """Train in step; with checkpoints, write a large one after each step."""
    import keras
    import tensorflow as tf

    class Marks(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 10 and not ctx.attempt:
                (args["directory"] / "begun").touch()

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    if not args["saves"]:
        return slow_fit(ctx, strategy, Marks())
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(200_000), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(1e-7), "mse")
    callbacks = [ctx.checkpoint(str(args["directory"] / "checkpoints")).callback(every=1), Marks()]
    first = ctx.checkpoint(str(args["directory"] / "checkpoints")).latest()
    assert bool(first) == bool(ctx.attempt), "a restart resumes, and only that"
    model.fit(ctx.dataset(8, features="x", label="y"), epochs=2, verbose=0, callbacks=callbacks)
    return [float(each.sum()) for each in model.get_weights()]


def fit(spark, directory, restarts, *, saves=False):
    """Train for ten seconds; both workers must end with the same weights."""
    args = {"directory": directory, "saves": saves}
    with tfos.Cluster(spark, train, args, num_workers=2, restarts=restarts) as cluster:
        cluster.train(slow_rows(spark))
        one, two = cluster.join().values()
    assert one == two


def save(spark, directory, restarts):
    fit(spark, directory, restarts, saves=True)


def infer(spark, directory, restarts):
    """Have two nodes answer for ten seconds; each row must have its result."""

    def program(args, ctx):
        def twice(ids):
            (directory / "begun").touch()
            time.sleep(0.5)
            return {"twice": 2 * ids}

        ctx.serve(twice, features="id")

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 50)
    with tfos.Cluster(spark, program, num_workers=2, restarts=restarts) as cluster:
        found = cluster.inference(spark.range(0, _ROWS, 1, 4), "twice long").collect()
    assert [each["twice"] for each in found] == [2 * number for number in range(_ROWS)]


DOES = {"feeding": feed, "training in step": fit, "writing checkpoints": save, "inference": infer}


def drive(spark, function, *arguments):
    """Call a function; return the error that it ended with, as a text, or ""; and the time of that."""
    text = ""
    try:
        function(spark, *arguments)
    except AssertionError:
        raise
    except Exception as error:  # Spark's of a job contain that of a node
        text = f"{getattr(error, 'cause', type(error).__name__)}\n{error}"
    return text, time.monotonic()


class Cell(NamedTuple):
    """What a cut has done.

    Attributes
    ----------
    text : str
        As of the table.
    error : str
        The line of an error that names a node, if the cut has ended the cluster or its first attempt.
    """

    text: str
    error: str


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A cluster whose driver is on the first host, and whose workers are on the two others."""
    with host_cluster(tmp_path_factory.mktemp("pair"), workers=(1, 2)) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def application(pair):
    application = Application(pair)
    yield application
    application.close()


@pytest.fixture(scope="module")
def cells():
    """The cells of the table by what is done, restarts and seconds; shows it at the end."""
    found = {}
    yield found
    print("\n| " + " | ".join(["", "`restarts`", *(f"{each} s" for each in CUTS)]) + " |")
    print("|" + "---|" * (2 + len(CUTS)))
    for row in dict.fromkeys(key[:2] for key in found):
        texts = [found[(*row, each)].text if (*row, each) in found else "" for each in CUTS]
        print("| " + " | ".join([row[0], str(row[1]), *texts]) + " |")
    for error in sorted({re.sub(r"\d+\.\d+\.\d+\.\d+(:\d+)?", "HOST", cell.error) for cell in found.values()} - {""}):
        print("-", error)


def begun(pair, application, function, *arguments):
    """Have a function begin its work; return the path of its answer.

    Spark may give up the executor of a long cut up to a minute after it: then the function begins again.
    """
    end = time.monotonic() + _CELL_SECONDS
    while True:
        directory = pair.shared / f"cut-{time.monotonic_ns()}"
        directory.mkdir()
        asked = application.ask(drive, function, directory, *arguments)
        while not (directory / "begun").exists() and not asked.exists():
            assert time.monotonic() < end, f"it does not begin: {application.output[-6000:]}"
            time.sleep(0.05)
        if (directory / "begun").exists():
            return asked
        text, _ = application.answer(asked, 1)
        assert "executor" in text, text


def cut_off(pair, application, seconds, function, *arguments):
    """Cut the last host off for some seconds while a function does its work; return the `Cell`."""
    before, restarted = len(application.output), None
    asked = begun(pair, application, function, *arguments)
    pair.network.cut(pair.hosts[2])
    begin, is_cut = time.monotonic(), True
    while not asked.exists() or is_cut:
        after = time.monotonic() - begin
        if is_cut and after >= seconds:
            pair.network.heal(pair.hosts[2])
            is_cut = False
        if restarted is None and "All nodes are started again" in application.output[before:]:
            restarted = after
        assert after < _CELL_SECONDS, f"it hangs: {application.output[before:][-6000:]}"
        time.sleep(0.05)
    text, end = application.answer(asked, 1)
    output = application.output[before:]
    print(f"\n{function.__name__}{arguments}, {seconds} s: {text[:3000] or 'went on'}\n{output[-3000:]}")
    wait_for(lambda: not pair.left(running=True), _LEFT_SECONDS)
    if text:
        return Cell(f"ends after {end - begin:.0f} s", named(text, pair.hosts[2]))
    if restarted is not None:
        line = output.partition("All nodes are started again")[0].rstrip().rpartition("\n")[2]
        return Cell(f"restarts after {restarted:.0f} s", named(line, pair.hosts[2]))
    return Cell("goes on", "")


def named(text, host):
    """Return the line of an error that names a host."""
    lines = [line.strip() for line in text.splitlines() if host.address in line]
    assert lines, f"the error does not name {host.address}: {text[:3000]}"
    return lines[0]


def _cells():
    for seconds in CUTS:
        for name in DOES:
            for restarts in (0, 1):
                quick = (name, restarts, seconds) == ("training in step", 0, 5)
                marks = () if quick else pytest.mark.slow
                yield pytest.param(name, restarts, seconds, marks=marks, id=f"{name}-{restarts}-{seconds}")


@pytest.mark.timeout(_CELL_SECONDS + _LEFT_SECONDS + 2 * _SPARKS_SECONDS)
@pytest.mark.parametrize(("name", "restarts", "seconds"), list(_cells()))
def test_a_cut_is_outlived_or_the_error_names_the_host(pair, application, cells, name, restarts, seconds):
    cell = cells[name, restarts, seconds] = cut_off(pair, application, seconds, DOES[name], restarts)
    print(f"{name}, restarts={restarts}, {seconds} s: {cell.text} {cell.error}", flush=True)
    if seconds >= _SPARKS_SECONDS:
        time.sleep(_SPARKS_SECONDS)
    if seconds <= _OUTLIVED or name == "inference":  # whose rows go to the node that is left
        assert cell.text == "goes on"
    elif restarts and seconds < _SPARKS_SECONDS:
        assert not cell.text.startswith("ends")


def average(args, ctx):
    import tensorflow as tf

    rounds = tfos.keras.DiLoCo(every=4)
    weights = slow_fit(ctx, tf.distribute.get_strategy(), rounds)
    return rounds.rounds, weights


def average_rounds(spark):
    with tfos.Cluster(spark, average, num_workers=2, logs=tfos.Logs(show="all")) as cluster:
        cluster.train(slow_rows(spark))
        return cluster.join()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_worker_that_is_cut_off_for_a_while_stays_in_its_rounds(pair, application):
    before = len(application.output)
    asked = application.ask(average_rounds)
    wait_for(lambda: "ready" in application.output[before:], 200)
    pair.network.cut(pair.hosts[2])
    time.sleep(15)
    pair.network.heal(pair.hosts[2])
    results = application.answer(asked, 200)
    assert len(results) == 2
    assert results["worker:0"] == results["worker:1"]
    assert "begins without" not in application.output[before:]
    assert "failed" not in application.output[before:]

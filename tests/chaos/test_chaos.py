"""Failures drawn at random, one after the other, for as long as it is asked for: nothing hangs, stays or is lost.

``TFOS_TEST_CHAOS_SECONDS`` says for how long (`make chaos`: ten minutes), ``TFOS_TEST_CHAOS_SEED`` with which draws.
"""

import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from threading import Thread

import psutil
import pytest

import tensorflowonspark as tfos
from tensorflowonspark.restart_policy import RestartPolicy
from tests.support.processes import fork_servers, left_behind, node_of

_SECONDS = float(os.environ.get("TFOS_TEST_CHAOS_SECONDS", "40"))
_SEED = int(os.environ.get("TFOS_TEST_CHAOS_SEED", "1"))
_ROUND_SECONDS = 60.0  # no round may take longer, whatever happens in it
_GONE_SECONDS = 8.0
_ROWS, _EPOCHS = 200, 2


def program(args, ctx):
    """Return the rows of each epoch; on the first attempt, take the failure that was drawn for the program."""
    epochs = []
    for _ in ctx.feeds():
        epoch = ctx.batches(20)
        for number in range(_EPOCHS):
            rows = []
            for step, batch in enumerate(epoch()):
                rows += batch["id"][batch["sample_weight"] > 0].tolist()
                time.sleep(0.02)
                if args and (ctx.attempt, ctx.index, number, step) == (0, *args[1:]):
                    fail(args[0])
            epochs.append(rows)
    return epochs


def fail(how):
    if how == "exit":
        os._exit(7)
    if how == "abort":
        os.abort()
    raise LookupError("drawn")


def strike(cluster, how, number):
    """Let something happen to a node from outside, in whatever state it is just now."""
    info = cluster.nodes[number]
    if info.pid is None or info.jvm_pid is None:
        return  # it has not connected yet (psutil.Process(None) would be this process)
    with suppress(psutil.Error, LookupError, OSError):
        if how == "kill node":
            node_of(cluster, number).kill()
        elif how == "stop node":
            node_of(cluster, number).send_signal(signal.SIGSTOP)
        elif how == "kill supervisor":
            psutil.Process(info.pid).kill()
        elif how == "stop supervisor":
            psutil.Process(info.pid).send_signal(signal.SIGSTOP)
        elif how == "kill fork server":
            fork_servers()[0].kill()
        elif how == "kill executor":
            psutil.Process(info.jvm_pid).kill()


def check_rows(results):
    """Each row was seen once in each epoch, by all workers together."""
    for epoch in range(_EPOCHS):
        seen = Counter(row for rows in results.values() for row in rows[epoch])
        assert seen == Counter(range(_ROWS))


def one_round(spark, draw, masters_executors):
    """Run a cluster that something happens to; return what, and what came of it."""
    inside = draw.random() < 0.3
    kinds = ["exit", "abort", "raise"] if inside else ["kill node", "stop node", "kill supervisor", "stop supervisor"]
    if not inside and draw.random() < 0.1:
        kinds = ["kill fork server"]
    if not inside and masters_executors and draw.random() < 0.15:
        kinds = ["kill executor"]
    how, number = draw.choice(kinds), draw.randrange(2)
    args = (how, number, draw.randrange(_EPOCHS), draw.randrange(5)) if inside else ()
    restarts = RestartPolicy(draw.choice([0, 3, 3]), backoff=0.1, causes=["raised", *RestartPolicy().causes])
    delay = draw.uniform(0, 1.5)
    fed = spark.range(0, _ROWS, 1, 3)
    striker = None
    try:
        with tfos.Cluster(
            spark, program, args, num_workers=2, restarts=restarts, nodes=tfos.Nodes(heartbeat_timeout=2.0)
        ) as cluster:
            if not inside:
                striker = Thread(target=lambda: (time.sleep(delay), strike(cluster, how, number)))
                striker.start()
            cluster.train(fed)
            results = cluster.shutdown()
        check_rows(results)
        outcome = "trained"
    except (tfos.NodeError, tfos.StartError, tfos.SlotsError) as error:
        outcome = getattr(error, "cause", type(error).__name__)
        if restarts.max_restarts and how != "kill executor":
            pytest.fail(f"not started again after {how}: {error}")
    finally:
        if striker is not None:
            striker.join()
    return how, outcome


def wait_until_clean(spark, what):
    tracker = spark.sparkContext.statusTracker()
    end = time.monotonic() + _GONE_SECONDS
    while (left := left_behind() + [f"job {job}" for job in tracker.getActiveJobsIds()]) and time.monotonic() < end:
        time.sleep(0.05)
    assert not left, f"left behind after {what}: {left}"


@pytest.mark.slow
@pytest.mark.masters("local", "local-cluster")
@pytest.mark.timeout(_SECONDS + 2 * _ROUND_SECONDS)
def test_failures_at_random(spark):
    draw = random.Random(_SEED)
    end = time.monotonic() + _SECONDS
    outcomes = Counter()
    while time.monotonic() < end:
        begin = time.monotonic()
        outcome = one_round(spark, draw, spark.sparkContext.master.startswith("local-cluster"))
        outcomes[outcome] += 1
        took = time.monotonic() - begin
        assert took < _ROUND_SECONDS, f"{outcome} took {took:.0f} s"
        wait_until_clean(spark, outcome[0])
    print(f"{sum(outcomes.values())} failures: {dict(outcomes)}")
    assert outcomes

"""Rounds on real nodes without TensorFlow: workers that die, that stand still, and that the others need."""

import os
import signal
import time

import numpy as np
import pytest

import tensorflowonspark as tfos
from tests.support.local_cluster import local_cluster


def train(args, ctx):
    """Add ones to the weights in each round; return what is shared at the end, and the attempt."""
    from tensorflowonspark.keras.round_state import RoundSettings, connected

    given = RoundSettings(((1000,),), 1000, 1.0, 0.0, True, args.get("min_workers", 1), args.get("timeout", 60.0))
    workers = connected()
    shared, over = workers.join(given, np.full(1000, ctx.index, np.float32))
    for at in range(args["rounds"]):
        if over:
            break
        if ctx.index == args.get("victim") and at == 2 and ctx.attempt == 0:
            os.kill(os.getpid(), args["signal"])
        time.sleep(0.05)
        shared, over = workers.average(shared.weights + np.float32(1), 1, at == args["rounds"] - 1)
    return shared.version, shared.weights.tobytes(), ctx.attempt


def test_a_killed_worker_is_left_out_and_nobody_is_restarted():
    with local_cluster(
        train, {"rounds": 6, "victim": 1, "signal": signal.SIGKILL}, num_workers=3, restarts=3
    ) as cluster:
        results = cluster.shutdown(60)
    assert set(results) == {"worker:0", "worker:2"}
    (shared,) = set(results.values())
    assert shared[1] == np.full(1000, 6, np.float32).tobytes()
    assert shared[2] == 0


def test_a_worker_that_stands_still_is_left_out_once_it_is_given_up():
    args = {"rounds": 6, "victim": 1, "signal": signal.SIGSTOP}
    with local_cluster(train, args, num_workers=3, nodes=tfos.Nodes(heartbeat_timeout=3.0)) as cluster:
        results = cluster.shutdown(60)
    assert set(results) == {"worker:0", "worker:2"}


@pytest.mark.parametrize(("args", "node"), [({"victim": 1, "min_workers": 2}, "worker:1"), ({"victim": 0}, "worker:0")])
def test_a_worker_that_the_others_need_fails_the_cluster(args, node):
    args = {"rounds": 6, "signal": signal.SIGKILL, **args}
    with (
        pytest.raises(tfos.NodeError, match="its process was ended by SIGKILL") as caught,
        local_cluster(train, args, num_workers=2) as cluster,
    ):
        cluster.shutdown(60)
    assert caught.value.node == node


def test_all_start_again_if_the_chief_dies_and_restarts_are_allowed():
    with local_cluster(
        train, {"rounds": 4, "victim": 0, "signal": signal.SIGKILL}, num_workers=2, restarts=1
    ) as cluster:
        results = cluster.shutdown(60)
    assert {attempt for _, _, attempt in results.values()} == {1}
    assert len(set(results.values())) == 1

"""Hosts whose wall clocks are minutes and hours apart."""

import shutil
import subprocess
import time

import pytest

import tensorflowonspark as tfos
from tests.support import ladder
from tests.support.host_cluster import host_cluster
from tests.support.paths import SUPPORT
from tests.support.programs import fit, small_frame

_SHIFTS = (0, 15 * 60, -5 * 3600)  # seconds of each host; the driver's is right


@pytest.fixture(scope="module")
def shifted_cluster(tmp_path_factory, can_make_hosts):
    if shutil.which("gcc") is None:
        ladder.skip("clocks are shifted by a small library, which gcc compiles")
    library = tmp_path_factory.mktemp("clock") / "clock.so"
    source = SUPPORT / "shifted_clock.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    with host_cluster(tmp_path_factory.mktemp("clocks"), workers=()) as cluster:
        workers = []
        for number, (host, shift) in enumerate(zip(cluster.hosts, _SHIFTS, strict=True)):
            host.path("/run/shift").write_text(str(shift))
            host.path("/run/clock.so").write_bytes(library.read_bytes())
            workers.append(cluster.add_worker(number, through=("env", "LD_PRELOAD=/run/clock.so")))
        yield cluster
        for worker in workers:
            worker.stdin.close()
            worker.wait(30)


def _timed_fit(args, ctx):
    import tensorflow as tf

    result = fit(args, ctx)
    checkpoint = ctx.checkpoint(f"{args['directory']}/checkpoints")
    state = tf.train.Checkpoint(weight=tf.Variable(float(ctx.attempt)))
    begun = checkpoint.restore(state)
    if not ctx.attempt:
        checkpoint.save(state, begun + 1)
        if ctx.index == 1:
            time.sleep(5.0)  # until the chief has saved
            raise RuntimeError("for a restart")
    return result, time.time(), begun


def _drive(spark, shared):
    args = {"batch_size": 10, "directory": shared}
    policy = tfos.RestartPolicy(1, causes=("raised",))
    with tfos.Cluster(
        spark,
        _timed_fit,
        args,
        num_workers=3,
        network=tfos.Network(tls=True),
        restarts=policy,
        logs=tfos.Logs(show="all"),
    ) as cluster:
        cluster.train(small_frame(spark, [40, 30, 50, 20]), feed_timeout=200)
        return cluster.join(), [each.host for each in cluster.nodes], time.time()


@pytest.mark.slow
@pytest.mark.timeout(450)
def test_a_training_over_tls_with_a_restart_needs_no_equal_clocks(shifted_cluster):
    results, hosts, now = shifted_cluster.run(_drive, str(shifted_cluster.shared))
    shifts = {host.address: shift for host, shift in zip(shifted_cluster.hosts, _SHIFTS, strict=True)}
    for host, (_, clock, begun) in zip(hosts, results.values(), strict=True):
        assert abs(clock - now - shifts[host]) < 60  # it was shifted
        assert begun == 1
    assert sorted(sum((each["seen"] for each, *_ in results.values()), [])) == list(range(140))
    assert not shifted_cluster.left()

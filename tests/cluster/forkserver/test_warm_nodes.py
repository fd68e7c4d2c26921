"""Nodes that have TensorFlow from their start: the second cluster of an application, and what may go wrong with it."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from threading import Thread

import numpy as np
import psutil
import pytest

import tensorflowonspark as tfos
from tests.support.processes import fork_servers, has_ended, is_fork_server, node_of
from tests.support.programs import fit, is_warm, look, small_frame, wait_for

_DEATH_SECONDS = 5.0


def import_and_sleep(args, ctx):
    import tensorflow  # noqa: F401

    print("asleep", flush=True)
    time.sleep(3600)


@pytest.mark.masters("local", "local-cluster")
def test_the_second_cluster_is_up_at_once_with_tensorflow(spark, warm):
    with tfos.Cluster(spark, look, num_workers=2) as cluster:
        assert cluster.join() == {"worker:0": (True, 6), "worker:1": (True, 6)}


@pytest.mark.slow
@pytest.mark.masters("local")
def test_training_is_the_same_as_with_fresh_nodes(spark, warm):
    weights = []
    for warm_nodes in (True, False):

        def program(args, ctx):
            import keras

            began = is_warm()
            keras.utils.set_random_seed(7)
            return began, fit(args, ctx)

        with tfos.Cluster(
            spark, program, {"batch_size": 16}, num_workers=2, nodes=tfos.Nodes(warm_nodes=warm_nodes)
        ) as cluster:
            cluster.train(small_frame(spark, [40, 40]))
            results = cluster.join()
        assert [began for began, _ in results.values()] == [warm_nodes, warm_nodes]
        weights.append(results["worker:0"][1]["weights"])
    for one, two in zip(*weights, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-7)


@pytest.mark.masters("local")
def test_a_cluster_without_tensorflow_starts_no_fork_server(spark, cold):
    # What pyarrow would import in any thread is there before the program, which may import it at the same time.
    found = tfos.run(spark, lambda args, ctx: [each in sys.modules for each in ("tensorflow", "pandas")])
    assert found == {"worker:0": [False, True]}
    tfos.run(spark, look, nodes=tfos.Nodes(warm_nodes=False))
    assert not fork_servers()


@pytest.mark.slow
@pytest.mark.masters("local")
def test_on_a_host_with_few_processors_the_first_cluster_imports_tensorflow_once(spark, cold):
    crowded = len(os.sched_getaffinity(0)) <= 2
    assert tfos.run(spark, look, num_workers=2) == dict.fromkeys(("worker:0", "worker:1"), (crowded, 6))


@pytest.mark.masters("local")
@pytest.mark.parametrize(
    ("end", "words"),
    [
        (lambda: os._exit(3), "its process ended with exit code 3 before its program did"),
        (lambda: os.abort(), "its process was ended by SIGABRT"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "its process was ended by SIGKILL"),
    ],
    ids=["exit", "abort", "kill"],
)
def test_ends_are_distinguished(spark, warm, end, words):
    def program(args, ctx):
        print("warm" if is_warm() else "cold", flush=True)
        end()

    with pytest.raises(tfos.NodeError) as caught:
        tfos.run(spark, program)
    assert caught.value.reason == words
    assert "warm" in caught.value.output


@pytest.mark.masters("local")
def test_nodes_die_with_their_supervisors(spark, warm):
    def with_a_child(args, ctx):
        subprocess.Popen(["sleep", "3600"])
        import_and_sleep(args, ctx)

    with pytest.raises(tfos.NodeError), tfos.Cluster(spark, with_a_child, num_workers=2) as cluster:
        time.sleep(1)
        node = node_of(cluster, 0)
        assert node.ppid() == warm.pid
        family = [node, *node.children(recursive=True)]
        assert "sleep" in [process.name() for process in family]
        psutil.Process(cluster.nodes[0].pid).kill()
        assert not psutil.wait_procs(family, timeout=_DEATH_SECONDS)[1]
        cluster.join()
    assert not has_ended(warm)
    # No one was there to remove the socket of its node; it lies in Spark's own directory and would go with it.
    for path in Path(spark.conf.get("spark.local.dir")).rglob("tfos-*"):
        if path.is_socket():
            path.unlink()


@pytest.mark.masters("local")
def test_a_fork_server_that_is_killed_does_not_disturb_a_training(spark, warm):
    def kill_in_the_third_epoch(cluster):
        node = cluster._monitor.roster.nodes[1]
        while node.program.progress is None or node.program.progress.epoch < 2:
            time.sleep(0.01)
        warm.kill()

    def program(args, ctx):
        return is_warm(), fit(args, ctx)

    with tfos.Cluster(spark, program, {"batch_size": 16, "epochs": 8}, num_workers=2) as cluster:
        Thread(target=kill_in_the_third_epoch, args=(cluster,), daemon=True).start()
        cluster.train(small_frame(spark, [100, 100]))
        results = cluster.join()
    assert has_ended(warm)
    for began, result in results.values():
        assert began
        assert np.isfinite(result["loss"]).all()


@pytest.mark.slow
@pytest.mark.masters("local")
def test_a_node_whose_fork_server_died_first_is_still_missed(spark, warm):
    with pytest.raises(tfos.NodeError) as caught, tfos.Cluster(spark, import_and_sleep) as cluster:
        node = node_of(cluster, 0)
        warm.kill()
        time.sleep(0.5)
        node.kill()
        cluster.join()
    assert caught.value.reason == "its process ended after its fork server, which would have received its exit code"


@pytest.mark.slow
@pytest.mark.masters("local")
def test_a_fork_server_that_is_stopped(spark, warm):
    with pytest.raises(tfos.NodeError) as caught, tfos.Cluster(spark, import_and_sleep) as cluster:
        node = node_of(cluster, 0)
        warm.send_signal(signal.SIGSTOP)
        try:
            assert tfos.run(spark, lambda args, ctx: is_warm()) == {"worker:0": False}
            node.kill()
            cluster.join()
        finally:
            warm.send_signal(signal.SIGCONT)
    assert caught.value.reason == "its process ended after its fork server, which would have received its exit code"


_DRIVER = """
import sys, time
from pyspark.sql import SparkSession
import tensorflowonspark as tfos

def program(args, ctx):
    import tensorflow
    print("asleep", flush=True)
    time.sleep(3600)

spark = SparkSession.builder.master(sys.argv[1]).config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
tfos.run(spark, lambda args, ctx: __import__("tensorflow").__version__, num_workers=1)
print("up", flush=True)
with tfos.Cluster(spark, program, num_workers=1) as cluster:
    cluster.join()
"""


@pytest.mark.parametrize("master", ["local[2]", "local-cluster[1,1,1024]"])
@pytest.mark.slow
def test_it_does_not_outlive_a_driver_that_is_killed(master, tmp_path):
    script = tmp_path / "driver.py"
    script.write_text(textwrap.dedent(_DRIVER))
    environment = {**os.environ, "TFOS_TEST_APPLICATION": str(tmp_path)}
    driver = subprocess.Popen([sys.executable, str(script), master], stdout=subprocess.PIPE, env=environment)

    def servers():
        found = []
        for process in filter(is_fork_server, psutil.process_iter()):
            try:
                if process.environ().get("TFOS_TEST_APPLICATION") == str(tmp_path):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    try:
        assert driver.stdout.readline() == b"up\n"
        wait_for(servers)
        alive = servers()
    finally:
        driver.kill()
        driver.wait()
    assert not psutil.wait_procs(alive, timeout=_DEATH_SECONDS)[1]

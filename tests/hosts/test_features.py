"""What a cluster does, on three hosts: one application after another trains, predicts, and runs scripts."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pyspark
import pytest

import tensorflowonspark as tfos
from tests.support.commands import TFOS
from tests.support.coordinated import Loop, coordinated
from tests.support.paths import ROOT
from tests.support.programs import fit, read, small_frame

EXECUTORS = ["--conf", "spark.executor.cores=1", "--conf", "spark.executor.memory=512m"]


def _train(spark):
    with tfos.Cluster(spark, fit, {"batch_size": 10}, num_workers=3) as cluster:
        cluster.train(small_frame(spark, [40, 30, 50, 20]), feed_timeout=120)
        hosts = [each.host for each in cluster.nodes]
        return hosts, cluster.join()


def _read_by_tls(spark):
    with tfos.Cluster(spark, read, {}, num_workers=3, network=tfos.Network(tls=True)) as cluster:
        cluster.train(small_frame(spark, [40, 30, 50, 20]), feed_timeout=120)
        return cluster.join()


def _infer(spark):
    def serve(args, ctx):
        ctx.serve(lambda ids: {"twice": 2 * ids, "node": np.full(len(ids), ctx.index)}, features="id")

    with tfos.Cluster(spark, serve, num_workers=3) as cluster:
        found = cluster.inference(spark.range(0, 300, 1, 6), "twice long, node int").collect()
    return [tuple(each) for each in found]


def train_with_parameter_servers(spark):
    def chief(args, ctx, coordinator):
        feed, loop = ctx.feed(), Loop(coordinator)
        return loop.to_the_end(feed, iter(loop.dataset(feed)))

    with tfos.Cluster(spark, coordinated(chief), num_workers=1, num_ps=1, chief=True) as cluster:
        cluster.train(small_frame(spark, [40, 30]), feed_timeout=120)
        return cluster.join()["chief:0"]


def _resume(spark, directory):
    """Two workers are killed after the step that they have saved; each host then finds the checkpoint."""

    def train(args, ctx):
        import tensorflow as tf

        from tensorflowonspark.keras.workers import combine

        weight = tf.Variable(0.0)
        checkpoint = ctx.checkpoint(args)
        begun = checkpoint.restore(state := tf.train.Checkpoint(weight=weight))
        combine("restored", begun)  # or a worker that came later would restore what the chief saves
        for step in range(begun + 1, 6):
            weight.assign_add(1.0)
            checkpoint.save(state, step)
            if step == 3 and not ctx.attempt and ctx.index:
                time.sleep(1.0)  # until the chief has saved
                os.kill(os.getpid(), signal.SIGKILL)
        return ctx.attempt, begun, float(weight.numpy())

    return tfos.run(spark, train, directory, num_workers=3, restarts=1)


def _do_all(spark, shared):
    return {
        "train": _train(spark),
        "tls": _read_by_tls(spark),
        "infer": _infer(spark),
        "ps": train_with_parameter_servers(spark),
        "resume": _resume(spark, f"{shared}/resumed"),
    }


@pytest.fixture(scope="module")
def found(shared_cluster):
    """What the features give in one application, whose executors import TensorFlow once."""
    results = shared_cluster.run(_do_all, shared_cluster.shared)
    assert not shared_cluster.left()
    return results


@pytest.mark.timeout(450)
def test_fit_trains_one_model(found, shared_cluster):
    hosts, results = found["train"]
    assert sorted(hosts) == [each.address for each in shared_cluster.hosts]
    first, *others = results.values()
    assert sorted(sum((each["seen"] for each in results.values()), [])) == list(range(140))
    for other in others:
        assert all((one == two).all() for one, two in zip(first["weights"], other["weights"], strict=True))


def test_rows_are_read_once_by_tls(found):
    assert sorted(row for feeds in found["tls"].values() for row in feeds[0][0]) == list(range(140))


def test_each_row_has_its_own_result_from_some_host(found):
    assert [each[:2] for each in found["infer"]] == [(number, 2 * number) for number in range(300)]
    assert {each[2] for each in found["infer"]} == {0, 1, 2}


def test_parameter_servers_train_on_each_row(found):
    assert sorted(found["ps"]) == list(range(70))


def test_a_training_resumes_from_a_checkpoint_in_a_shared_directory(found):
    attempt, begun, weight = found["resume"]["worker:0"]
    assert attempt == 1
    assert begun >= 2
    assert found["resume"] == {f"worker:{number}": (1, begun, 5.0) for number in range(3)}
    assert weight == 5.0


@pytest.mark.timeout(450)
def test_a_script_that_only_the_drivers_host_has_runs_on_all(cluster):
    script = cluster.hosts[0].path("/tmp/script.py")
    script.write_text(
        "import json, os, socket, sys\nprint('trained', socket.gethostname(), os.environ['TF_CONFIG'], *sys.argv[1:])\n"
    )
    options = ["--master", cluster.master, "--workers", "3", "--show", "all", *EXECUTORS]
    driver = cluster.submit([*TFOS, "run", *options, "/tmp/script.py", "well"])
    assert driver.wait() == 0, driver.output
    for number, host in enumerate(cluster.hosts):
        (line,) = [each for each in driver.output.splitlines() if f"trained {host.name} " in each]
        assert line.endswith(" well")
        addresses = json.loads(line.partition(f"{host.name} ")[2].rpartition(" ")[0])["cluster"]["worker"]
        assert {each.rpartition(":")[0] for each in addresses} == {each.address for each in cluster.hosts}, number
    script.unlink()


@pytest.mark.slow
@pytest.mark.timeout(450)
def test_a_program_of_2x_that_takes_nine_tenths_of_its_rows_ends(cluster):
    """Each node has its share of the rows, although a step takes as many from each, and no node may run dry."""
    spark = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    program = [ROOT / "examples/v2/feed.py", "--epochs", "2", "--cluster_size", "2"]
    export = cluster.shared / "model"
    command = [spark, "--master", cluster.master, *EXECUTORS, *program, "--export_dir", export]
    driver = cluster.submit(command, env={"PYSPARK_DRIVER_PYTHON": sys.executable})
    assert driver.wait() == 0, driver.output[-5000:]
    assert "accuracy:" in driver.output

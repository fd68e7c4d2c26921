"""Hosts that have addresses of IPv6 alone."""

import re
import time
import urllib.request
from http import HTTPStatus

import pytest

import tensorflowonspark as tfos
from tests.hosts.test_features import EXECUTORS, train_with_parameter_servers
from tests.hosts.test_table_of_ports import train_on_jax
from tests.support.commands import TFOS
from tests.support.host_cluster import host_cluster
from tests.support.programs import all_ids, fit, read, small_frame, small_model

PREFER = "-Djava.net.preferIPv6Addresses=true"
SETTINGS = {f"spark.{each}.extraJavaOptions": PREFER for each in ("driver", "executor")}
# Java's option is for the JVMs, and this for the Python of the driver, which connects to its JVM.
ENVIRONMENT = {"SPARK_SUBMIT_OPTS": PREFER, "SPARK_PREFER_IPV6": "true"}


@pytest.fixture(scope="module")
def ipv6_cluster(tmp_path_factory, can_make_hosts):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_DAEMON_JAVA_OPTS", PREFER)
        with host_cluster(tmp_path_factory.mktemp("ipv6"), ipv6=True) as cluster:
            yield cluster


def _average(args, ctx):
    model, rounds = small_model(), tfos.keras.DiLoCo(every=2)
    model.fit(ctx.dataset(10, features="features", label="label"), epochs=1, verbose=0, callbacks=[rounds])
    return rounds.rounds


def _do_all(spark, logs):
    rows = small_frame(spark, [40, 30, 50, 20]).repartition(4).cache()
    found = {}
    with tfos.Cluster(spark, read, {}, num_workers=3, dashboard=True) as cluster:
        cluster.train(rows, feed_timeout=120)
        found["hosts"] = [each.host for each in cluster.nodes]
        found["url"] = cluster.dashboard_url
        with urllib.request.urlopen(found["url"], timeout=20) as page:
            found["page"] = page.status
        found["ids"] = all_ids(cluster.join())
    with tfos.Cluster(
        spark, fit, {"batch_size": 10}, num_workers=3, network=tfos.Network(network_interface="fd77::/16")
    ) as cluster:
        cluster.train(rows, feed_timeout=200)
        found["fit"] = cluster.join()
    with tfos.Cluster(spark, _average, num_workers=2) as cluster:
        cluster.train(rows, feed_timeout=200)
        found["rounds"] = cluster.join()
    with tfos.Cluster(spark, train_on_jax, num_workers=2, env={"KERAS_BACKEND": "jax"}, tensorboard=logs) as cluster:
        cluster.train(rows, feed_timeout=200)
        while cluster.tensorboard_url is None:
            time.sleep(0.1)
        with urllib.request.urlopen(cluster.tensorboard_url, timeout=20) as page:
            found["tensorboard"] = page.status
        found["jax"] = cluster.join()
    found["ps"] = train_with_parameter_servers(spark)
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_that_nodes_do_together_works(ipv6_cluster):
    found = ipv6_cluster.run(_do_all, str(ipv6_cluster.shared), settings=SETTINGS, env=ENVIRONMENT, seconds=560)
    assert sorted(found["hosts"]) == [each.address for each in ipv6_cluster.hosts]
    assert (found["page"], found["tensorboard"]) == (HTTPStatus.OK, HTTPStatus.OK)
    assert found["ids"] == list(range(140))
    assert sorted(sum((each["seen"] for each in found["fit"].values()), [])) == list(range(140))
    assert min(found["rounds"].values()) > 0
    assert set(found["jax"]) == {"worker:0", "worker:1"}
    assert sorted(found["ps"]) == list(range(70))
    assert not ipv6_cluster.left()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_check_of_the_cluster_finds_no_problem(ipv6_cluster):
    java = [each for name, value in SETTINGS.items() for each in ("--conf", f"{name}={value}")]
    driver = ipv6_cluster.submit(
        [*TFOS, "check", "--master", ipv6_cluster.master, "--ports", "7000-7010", *EXECUTORS, *java], env=ENVIRONMENT
    )
    assert driver.wait() == 0, driver.output
    assert len(re.findall(r"reached$", driver.output, re.MULTILINE)) == len(ipv6_cluster.hosts)

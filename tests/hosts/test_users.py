"""Executors of another user, with another working directory, and a Python at another path than the driver's."""

import os
import sys
from pathlib import Path

import pytest

import tensorflowonspark as tfos
from tensorflowonspark.driver.spark.resources import find_slots
from tests.support.host_cluster import host_cluster
from tests.support.programs import fit, small_frame

_USER = 4321
_PYTHON = "/tmp/elsewhere"
# The rights to read are for tests whose Python is in a home that others can't enter.
_AS_USER = ["setpriv", f"--reuid={_USER}", f"--regid={_USER}", "--clear-groups"]
_AS_USER += [
    "--inh-caps=-all,+dac_read_search",
    "--ambient-caps=-all,+dac_read_search",
    "--bounding-set=-all,+dac_read_search",
]
_AS_USER += ["env", "--chdir=/", "HOME=/nowhere", "USER=other", "LOGNAME=other"]


@pytest.fixture(scope="module")
def users_cluster(tmp_path_factory, can_make_hosts):
    """A cluster with one executor of this user, and one of a user who has no home, and no right to write in most."""
    with host_cluster(tmp_path_factory.mktemp("users"), workers=(0,), count_hosts=2) as cluster:
        for host in cluster.hosts:
            host.run("ln", "-s", sys.prefix, _PYTHON)
        # Hadoop's library wants a name for each user.
        entry = f"other:x:{_USER}:{_USER}::/nowhere:/bin/sh"
        named = f"cp /etc/passwd /run/passwd && echo {entry} >> /run/passwd && mount --bind /run/passwd /etc/passwd"
        cluster.hosts[1].run("sh", "-c", named)
        worker = cluster.add_worker(1, work="/tmp/work", through=_AS_USER)
        yield cluster
        worker.stdin.close()
        worker.wait(30)


def _about(args, ctx):
    place = os.getuid(), os.environ.get("HOME"), sys.executable, os.access(os.environ.get("HOME", "/"), os.W_OK)
    return place, str(Path.cwd()), fit(args, ctx)


def _drive(spark):
    find_slots(spark.sparkContext, 2, 2, 60.0, had=2)
    with tfos.Cluster(spark, _about, {"batch_size": 10}, num_workers=2) as cluster:
        cluster.train(small_frame(spark, [40, 30, 50, 20]).repartition(4), feed_timeout=200)
        return [each.host for each in cluster.nodes], cluster.join()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nodes_of_different_users_train_one_model(users_cluster):
    hosts, results = users_cluster.run(_drive, env={"PYSPARK_PYTHON": f"{_PYTHON}/bin/python"})
    found = dict(zip(hosts, results.values(), strict=True))
    one, other = (found[each.address] for each in users_cluster.hosts)
    assert [one[0][0], other[0][0]] == [os.getuid(), _USER]
    assert other[0][1:] == ("/nowhere", f"{_PYTHON}/bin/python", False)
    assert one[1] != other[1]
    assert sorted(one[2]["seen"] + other[2]["seen"]) == list(range(140))
    assert all((a == b).all() for a, b in zip(one[2]["weights"], other[2]["weights"], strict=True))
    assert not users_cluster.left()

"""Forked children of the driver."""

import pytest

from tests.support.commands import run_python

_FORKING_DRIVER = """
import multiprocessing, os, sys
from tests.support.backend import cluster_on
from tests.support.scripted import ScriptedBackend, returns
import tensorflowonspark as tfos

backend = ScriptedBackend(lambda node: node.feeding.wait() and returns(7)(node))

def child(act):
    pid = os.fork()
    if not pid:
        act()
        return True
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    return False

def refused(act):
    try:
        act()
    except tfos.ClusterError as error:
        sys.exit(5 if "is a forked child of the driver" in str(error) else 6)

with cluster_on(backend) as cluster:
    calls = [cluster._check, cluster.join, cluster.shutdown, lambda: cluster.inference(None, "")]
    left = child(lambda: sys.exit(0)) or child(lambda: None)
    if not left:
        for call in calls:
            child(lambda: refused(call))
        forked = multiprocessing.get_context("fork").Process(target=sys.exit, args=(4,))
        forked.start()
        forked.join()
        print(forked.exitcode)
        backend.nodes[0].feeding.set()
        assert not backend.nodes[0].stopped.is_set()
if not left:
    print(cluster.join(), flush=True)
"""


@pytest.mark.deep
def test_a_forked_child_of_the_driver_does_not_end_the_cluster():
    assert run_python(_FORKING_DRIVER).splitlines() == ["0", "0", "5", "5", "5", "5", "4", "{'worker:0': 7}"]

"""A real Kubernetes on this machine (`make test-kubernetes`)."""

import os

import pytest

from tests.support import ladder
from tests.support.programs import wait_for
from tests.support.real_kubernetes import RealKubernetes, what_is_missing


@pytest.fixture(scope="session")
def cluster():
    build = os.environ.get("TFOS_TEST_KUBERNETES", ".venvs/kubernetes")
    if problem := what_is_missing(build):
        ladder.skip(problem)
    running = RealKubernetes(build, f"{build}/cluster")
    yield running
    running.close()


@pytest.fixture
def folder(cluster, request):
    """A folder that drivers and pods see, of which the name is that of the application."""
    found = cluster.shared / "".join(each if each.isalnum() else "-" for each in request.node.name).strip("-")[:40]
    found.mkdir()
    found.chmod(0o1777)
    yield found
    wait_for(lambda: not _running(cluster), 60)  # a pod has 30 s to end


def _running(cluster):
    """Return the executors' pods that have not ended; where Spark does not start, it leaves one that has."""
    phases = [each["status"]["phase"] for each in cluster.pods(spark_role="executor")]
    return [each for each in phases if each in ("Pending", "Running")]

"""A real Kubernetes on this machine (`make test-kubernetes`)."""

import os

import pytest

from tests.support import ladder
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
    found.chmod(0o777)
    yield found
    assert not cluster.pods(spark_role="executor"), "executors outlive their application"

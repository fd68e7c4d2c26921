"""A Kubernetes cluster for the tests of this folder."""

import subprocess
import tempfile

import pytest

from tests.support import ladder, maven
from tests.support.kubernetes.cluster import JARS, KubernetesCluster, fetch_jars
from tests.support.processes import ended


@pytest.fixture(scope="session")
def kubernetes():
    """An API server, and a kubelet that runs pods as processes."""
    problem = maven.what_is_missing(JARS)
    if problem:
        ladder.skip(problem)
    try:
        fetch_jars()
    except subprocess.SubprocessError as error:
        ladder.skip(f"Maven could not fetch the API server: {error}")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        cluster = KubernetesCluster(directory)
        yield cluster
        cluster.close()


@pytest.fixture(autouse=True)
def no_pods_left(request):
    """Fail a test after which a pod is still there."""
    yield
    if "kubernetes" in request.fixturenames:
        api = request.getfixturevalue("kubernetes").api
        assert not ended(lambda: [each["metadata"]["name"] for each in api.get("pods")])

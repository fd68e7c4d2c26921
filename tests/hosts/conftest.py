"""A Spark cluster on three hosts."""

import pytest

from tests.support import hosts, ladder
from tests.support.host_cluster import host_cluster


@pytest.fixture(scope="session", autouse=True)
def can_make_hosts():
    """Skip all tests here where no hosts can be made."""
    if problem := hosts.what_is_missing("nft", "tc"):
        ladder.skip(problem)


@pytest.fixture(scope="session")
def shared_cluster(can_make_hosts, tmp_path_factory):
    with host_cluster(tmp_path_factory.mktemp("hosts")) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster):
    """A cluster with a worker on each of three hosts, on which no test leaves a process or file."""
    yield shared_cluster
    left = shared_cluster.left()
    assert not left, f"left behind: {left}"

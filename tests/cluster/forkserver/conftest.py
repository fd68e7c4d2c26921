"""An executor with a fork server, or without one."""

import pytest

import tensorflowonspark as tfos
from tests.support.processes import fork_servers
from tests.support.programs import look, wait_for


@pytest.fixture
def warm(spark):
    """See to it that the executor has a fork server for nodes of the usual environment; return the server's process.

    An earlier test may have left a server for another environment, or one of a Spark session that is just ending.
    """
    wait_for(lambda: tfos.run(spark, look)["worker:0"][0], 110)  # two imports of TensorFlow, on a busy host
    wait_for(lambda: len(fork_servers()) == 1)
    return fork_servers()[0]


@pytest.fixture
def cold(spark):
    """End the fork servers that earlier tests have left."""
    for server in fork_servers():
        server.kill()
        server.wait(5)

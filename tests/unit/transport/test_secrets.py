"""Messages that do not show the secret, and settings that ask for TLS."""

import sys

import pytest

from tensorflowonspark.config import ClusterConfig, ClusterSpec
from tensorflowonspark.errors import RequirementError
from tensorflowonspark.messages import NodeEndpoint, NodeReady
from tensorflowonspark.node.setup import NodeSetup
from tensorflowonspark.supervisor.supervisor_client import NodeAssignment
from tensorflowonspark.task.feeder import FeedSpec
from tensorflowonspark.transport import Credentials, new_credentials, spark_wants_tls


def test_no_text_of_ours_shows_it():
    known = Credentials("the-token", "the-certificate", "the-key")
    config = ClusterConfig(ClusterSpec(num_workers=1), b"")
    order = NodeAssignment(config, "c", known, ("h", 1), 0, "h", 1)
    setup = NodeSetup(config, 0, "h", known)
    target = NodeEndpoint(0, "worker:0", "h", NodeReady())
    for each in (known, order, setup, (target, known, FeedSpec(0))):
        for word in ("the-token", "the-certificate", "the-key"):
            assert word not in f"{each!r} {each}"


class Conf:
    """A session's settings."""

    def __init__(self, settings):
        self.conf = settings


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, False),
        ({"spark.authenticate": "true"}, False),
        ({"spark.io.encryption.enabled": "true"}, False),
        ({"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}, True),
        ({"spark.ssl.enabled": "True"}, True),
        ({"spark.ssl.rpc.enabled": "true", "spark.ssl.enabled": "false"}, True),
        ({"spark.authenticate.enableSaslEncryption": "true"}, True),
    ],
)
def test_spark_asks_for_tls(settings, wanted):
    assert spark_wants_tls(Conf(settings)) is wanted


def test_tls_without_what_makes_certificates(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(RequirementError, match=r'pip install "tensorflowonspark\[tls\]"'):
        new_credentials(tls=True)

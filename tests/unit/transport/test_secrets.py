"""Messages that do not show the secret, and settings that ask for TLS."""

import sys

import pytest

from tensorflowonspark.errors import EnvironmentNotReady
from tensorflowonspark.messages import Ready
from tensorflowonspark.node.setup import NodeSetup
from tensorflowonspark.spec import ClusterSpec
from tensorflowonspark.supervisor.assignment import Assignment
from tensorflowonspark.task.plan import FeedOrder, FeedTarget
from tensorflowonspark.transport import Credentials, new_credentials, spark_wants_tls


def test_no_word_of_ours_shows_it():
    known = Credentials("the-token", "the-certificate", "the-key")
    spec = ClusterSpec(workers=1)
    role = spec.roles[0]
    order = Assignment("c", known, ("h", 1), spec, 0, role, "h", 1, b"")
    setup = NodeSetup(spec, 0, role, "h", known, b"", (), "", "")
    target = FeedTarget(0, "worker:0", "h", Ready())
    for each in (known, order, setup, (target, known, FeedOrder(0))):
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
    with pytest.raises(EnvironmentNotReady, match=r'pip install "tensorflowonspark\[tls\]"'):
        new_credentials(tls=True)

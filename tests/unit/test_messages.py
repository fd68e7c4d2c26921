"""Every message has a direction and, at its receiver, a handler."""

import dataclasses

import pytest

from tensorflowonspark import feed_messages, messages
from tensorflowonspark.config import Job, Role
from tensorflowonspark.driver.reception import Reception
from tensorflowonspark.messages import READ_BY_SUPERVISORS, Member, Reply, ToDriver, ToNode, ToSupervisor
from tensorflowonspark.node.driver_link import Link
from tensorflowonspark.supervisor.supervisor import Supervisor
from tensorflowonspark.terminal import CONSOLE

# Fields of messages, and headers of the streams in which rows are sent.
VALUES = {
    "CacheConfig",
    "ColumnSummary",
    "GpuUsage",
    "InferenceHeader",
    "Layout",
    "LengthRange",
    "Member",
    "Move",
    "NodeEndpoint",
    "PartHeader",
    "PartRef",
    "PartSummary",
    "Peer",
    "Progress",
    "ReportedMetrics",
    "Shares",
    "SplitManifest",
}
CLASSES = [
    each
    for module in (messages, feed_messages)
    for each in vars(module).values()
    if dataclasses.is_dataclass(each) and each.__module__ == module.__name__ and each.__name__ not in VALUES
]


def handled(receiver, *methods):
    """Return whether a class has a handler in one of the dispatching methods."""
    tables = [vars(receiver)[method].dispatcher for method in methods]
    return lambda each: any(table.dispatch(each) is not table.dispatch(object) for table in tables)


HANDLERS = {
    ToDriver: handled(Reception, "_open", "_handle"),
    ToSupervisor: handled(Supervisor, "_handle"),
    ToNode: handled(Link, "_handle"),
}


@pytest.mark.parametrize("message", CLASSES, ids=lambda each: each.__name__)
def test_a_message_has_a_direction_and_a_handler(message):
    directions = [base for base in (*HANDLERS, Reply) if issubclass(message, base)]
    assert directions
    for base, has_handler in HANDLERS.items():
        if base in directions:
            assert has_handler(message)
    if HANDLERS[ToSupervisor](message):
        assert issubclass(message, READ_BY_SUPERVISORS)


def test_handlers_are_for_messages_of_their_receiver():
    for base, receiver, methods in (
        (ToDriver, Reception, ("_open", "_handle")),
        (ToNode, Link, ("_handle",)),
        (ToSupervisor, Supervisor, ()),  # which also acts on messages that it forwards
    ):
        for method in methods:
            types = set(vars(receiver)[method].dispatcher.registry) - {object}
            assert types <= set(CLASSES)
            assert all(issubclass(each, base) for each in types)


class Unknown:
    """A message of another version, say."""


def test_a_message_without_handler_is_logged_with_its_sender(caplog):
    link = Link.__new__(Link)
    link._handle(Unknown())
    assert caplog.messages == ["the supervisor sent a Unknown, for which this node has no handler"]


class Receiver:
    """In place of the driver's channel, and of the node."""

    def __init__(self):
        self.received = []

    def send(self, message):
        self.received.append(message)

    def forward_output(self):
        """Forward the node's output: there is none."""


@pytest.fixture
def supervisor():
    made = Supervisor.__new__(Supervisor)
    made._outbox, made._node, made._task = Receiver(), Receiver(), None
    made._outcome_sent = made._failed = False
    made._stop = None
    return made


@pytest.mark.parametrize(
    ("source", "message", "to_driver", "to_node"),
    [
        ("node", messages.Returned(b""), True, False),
        ("node", feed_messages.RowsConsumed(0, 5), True, False),
        ("task", feed_messages.FeedFailed(0, "no rows"), True, False),
        ("driver", messages.NoMoreFeeds(), False, True),
        ("driver", messages.Detach(), False, False),
    ],
)
def test_a_supervisor_forwards_by_direction(supervisor, source, message, to_driver, to_node):
    supervisor._on_message(source, message)
    assert supervisor._outbox.received == [message] * to_driver
    assert supervisor._node.received == [message] * to_node


@pytest.mark.parametrize(
    ("source", "message"),
    [("node", messages.NoMoreFeeds()), ("driver", messages.Lines(())), ("node", Unknown())],
)
def test_a_supervisor_logs_what_it_can_not_forward(supervisor, source, message, caplog):
    supervisor._on_message(source, message)
    assert CONSOLE.drain()
    assert supervisor._outbox.received == supervisor._node.received == []
    assert caplog.messages == [f"the {source} sent a {type(message).__name__}, which has no receiver"]


@pytest.mark.parametrize(("host", "address"), [("10.0.0.7", "10.0.0.7:5"), ("h1", "h1:5"), ("fd77::2", "[fd77::2]:5")])
def test_the_address_of_a_node_is_one_that_tensorflow_reads(host, address):
    assert Member(0, Role(Job.WORKER, 0), host, 5).address == address

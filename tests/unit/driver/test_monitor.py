"""The state of all nodes: under signals that end what the main thread does, and with many nodes."""

import signal
import time
from contextlib import suppress
from queue import SimpleQueue
from threading import Event, Thread, current_thread, main_thread
from types import SimpleNamespace

import pytest

from tensorflowonspark.config import ClusterSpec
from tensorflowonspark.driver.nodes import NodeState
from tensorflowonspark.messages import FeedWanted, Member, Members, NodeReady, Register, Returned, Stop
from tensorflowonspark.transport import ConnectionLost, Packed
from tensorflowonspark.transport.pickled import unpack
from tests.support.monitors import monitor_of, reception_of
from tests.support.programs import wait_for


class Interrupted(BaseException):
    """What the handler of a signal raises."""


@pytest.fixture
def interrupting():
    """Raise Interrupted in this thread soon after `signal.setitimer` was called."""

    def interrupt(_number, _frame):
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.timeout(60, method="thread")  # the other one uses the same timer
def test_a_signal_never_leaves_the_state_locked(interrupting):
    """Other threads go on after a signal, wherever it has interrupted a waiting main thread."""
    monitor = monitor_of(ClusterSpec(num_workers=2))
    monitor.inbox.start()
    ended = Event()

    def wake():
        while not ended.is_set():
            monitor.inbox.wake()
            monitor.end.failure()
            time.sleep(1e-4)

    threads = [Thread(target=wake, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        end = time.monotonic() + 1
        count = 0
        while time.monotonic() < end:
            count += 1
            with pytest.raises(Interrupted):
                signal.setitimer(signal.ITIMER_REAL, 3e-4 + count % 50 * 1e-5)
                while True:
                    monitor.wait(lambda: False, 1e-3)
            other = Thread(target=monitor.end.failure, daemon=True)
            other.start()
            other.join(5)
            assert not other.is_alive(), f"locked by signal {count}"
    finally:
        ended.set()
        monitor.inbox.close()
    for thread in threads:
        thread.join(5)


def test_an_error_of_the_drivers_own_ends_the_wait_for_the_cluster(caplog):
    monitor = monitor_of(ClusterSpec(num_workers=1))
    monitor.inbox.start()

    def fails(_node):
        raise LookupError("no such part")

    monitor.feed = SimpleNamespace(number=0, note_program=fails)
    role = monitor.roster.spec.roles[0]
    channel = PlayedChannel([Register(Member(0, role, "here", 1000), monitor.members.cluster_id, 1, 1), FeedWanted(0)])
    Thread(target=_serve, args=(monitor, channel), daemon=True).start()
    with pytest.raises(LookupError, match="no such part"):
        monitor.wait(lambda: False, 5)
    assert isinstance(unpack(channel.sent[-1].data), Stop)
    wait_for(lambda: "could not handle an event" in caplog.text)  # a thread writes it
    channel.end()
    monitor.inbox.close()


class CountedList(list):
    """A list that counts how often it is read from one end to the other, but not by the thread that waits for a state.

    That thread looks each time that it is woken, which is more often on a busy machine.
    """

    scans = 0

    def __iter__(self):
        self.scans += current_thread() is not main_thread()
        return super().__iter__()


class PlayedChannel:
    """The driver's end of a channel, with the messages that a node sends; None lets the next node send its own."""

    def __init__(self, messages):
        self.sent = []
        self._messages = SimpleQueue()
        self.waits = Event()
        for message in messages:
            self._messages.put(message)

    def send(self, message):
        self.sent.append(message)

    def receive(self):
        if self._messages.empty():
            self.waits.set()
        message = self._messages.get()
        if message is None:
            raise ConnectionLost("it has ended")
        return message

    def end(self):
        self._messages.put(None)


def _serve(monitor, channel):
    """Have a monitor take all messages of a channel."""
    listener = reception_of(monitor).serve(channel)
    with suppress(ConnectionLost):
        while True:
            listener.on_message(channel.receive())
    listener.on_end()


def _scans(count):
    """Return how often the state of all nodes is scanned until this number of nodes has come, returned and gone."""
    monitor = monitor_of(spec := ClusterSpec(num_workers=count))
    for name in ("nodes", "_fed", "_trainers"):
        setattr(monitor.roster, name, CountedList(getattr(monitor.roster, name)))
    monitor.inbox.start()
    channels = []
    for number, role in enumerate(spec.roles):
        register = Register(Member(number, role, "here", 1000 + number), monitor.members.cluster_id, 1, 1)
        channels.append(PlayedChannel([register, NodeReady("socket", 1), FeedWanted(0), Returned(b"")]))
    threads = [Thread(target=_serve, args=(monitor, each), daemon=True) for each in channels]
    for thread, channel in zip(threads, channels, strict=True):
        thread.start()
        assert channel.waits.wait(5)
    assert monitor.wait(lambda: monitor.roster.count(NodeState.RETURNED) == count, 5)
    monitor.end.stop(0.0)
    for channel in channels:
        channel.end()
    assert monitor.wait_until_gone(5) == []
    monitor.inbox.close()
    for thread in threads:
        thread.join(5)
    return sum(getattr(monitor.roster, name).scans for name in ("nodes", "_fed", "_trainers"))


def test_no_message_of_a_node_scans_all_nodes():
    """Else the time of the driver grows with the square of their number."""
    assert _scans(40) - _scans(10) < 10


def test_the_list_of_all_nodes_is_small():
    """Each of them gets it: with a thousand it was 74 MB in all."""
    roles = ClusterSpec(num_workers=1000).roles
    members = Members(
        tuple(Member(number, role, f"ip-10-0-{number % 7}-{number}.internal", 30000 + number * 7 % 10007, ())
              for number, role in enumerate(roles))
    )  # fmt: skip
    packed = Packed(members, compressed=True)
    assert len(packed.data) < 16_000
    assert unpack(packed.data) == members

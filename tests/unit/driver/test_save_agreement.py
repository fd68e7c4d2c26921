"""The step after which all workers save, with messages that are late, and in every order of events."""

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorflowonspark.driver.save_agreement import SaveAgreement
from tensorflowonspark.messages import SaveDecision, SaveProposal
from tensorflowonspark.node.save_points import SavePoints

_STEPS = 60


class Worker:
    """A worker that takes each step together with the others, and saves together with them."""

    def __init__(self):
        self.points, self.inbox, self.outbox = SavePoints(), deque(), deque()
        self.ended, self.waits, self.saved = 0, None, []

    def receive(self):
        if self.inbox:
            reply = self.points.receive(self.inbox.popleft())
            if reply is not None:
                self.outbox.append(reply)

    def go_on(self):
        """Go on if that is decided; return whether it has saved."""
        saved = len(self.saved)
        if self.waits is not None and (decided := self.points.decided(self.waits)) is not None:
            self.saved += [self.ended] if decided else []
            self.waits = None
        return len(self.saved) > saved

    def has_begun(self, step):
        """Whether it is in this step, or past it; it is in none while it waits, or saves and others do not."""
        return self.ended >= step or (self.ended == step - 1 and self.waits is None)


class Training:
    """Workers, the driver, and what is on its way between them."""

    def __init__(self, count):
        self.workers = [Worker() for _ in range(count)]
        self.timers = deque()
        self.agreement = SaveAgreement(
            lambda number, message: self.workers[number].inbox.append(message),
            lambda seconds, call: self.timers.append(call),
            lambda: range(count),
        )

    def act(self, kind, number):
        worker = self.workers[number % len(self.workers)]
        match kind:
            case "notice":
                self.agreement.begin()
            case "saved":  # another checkpoint, as of an epoch
                self.agreement.end()
            case "to worker":
                worker.receive()
            case "wakes":  # its program, which may come to it much later than its messages
                if worker.go_on() and worker is self.workers[0]:
                    self.agreement.end()
            case "to driver" if worker.outbox:
                self.agreement.receive(number % len(self.workers), worker.outbox.popleft())
            case "time" if self.timers:
                self.timers.popleft()()
            case "step":
                self.step(worker)

    def step(self, worker):
        together = all(each.saved[: len(worker.saved)] == worker.saved for each in self.workers)
        begun = all(each.has_begun(worker.ended + 1) for each in self.workers)
        if worker.waits is None and together and begun and worker.ended < _STEPS:
            worker.ended += 1
            worker.waits = worker.points.end_step()


events = st.tuples(
    st.sampled_from(["notice", "saved", "to worker", "wakes", "to driver", "time", *["step"] * 3]), st.integers(0, 3)
)


@pytest.mark.deep
@settings(max_examples=150, deadline=None)
@given(st.integers(1, 4), st.lists(events, max_size=300), st.integers(1, 6))
def test_no_worker_waits_for_one_that_has_gone_further(count, drawn, late):
    """However late its program wakes: after so many messages."""
    training = Training(count)
    for kind, number in drawn:
        training.act(kind, number)
    for _ in range(20 * _STEPS):  # then all goes on
        for kind in ("step", *["to worker", "to driver"] * late, "wakes"):
            for number in range(count):
                training.act(kind, number)
        training.act("time", 0)
    assert [each.ended for each in training.workers] == [_STEPS] * count
    assert all(each.saved == training.workers[0].saved for each in training.workers)


@pytest.mark.parametrize("seconds", [0, 3])
def test_workers_save_after_the_next_steps(seconds):
    """Also if none has ended a step yet when the notice comes: they are asked again every second."""
    training = Training(2)
    for _ in range(0 if seconds else 5):
        for worker in training.workers:
            training.step(worker)
    training.agreement.begin()
    for _ in range(seconds):
        for number in (0, 1):
            training.act("to worker", number)
            training.act("wakes", number)
            training.act("to driver", number)
        training.act("time", 0)
    begun = training.workers[0].ended
    for _ in range(6):
        for number in (0, 1):
            for kind in (*["to worker", "wakes", "to driver"] * 2, "step"):
                training.act(kind, number)
        training.act("time", 0)
    assert training.workers[0].saved == training.workers[1].saved
    assert training.workers[0].saved[0] <= begun + 4


def test_a_worker_that_is_bound_refuses_another_step():
    points = SavePoints()
    assert points.receive(SaveProposal(1, step=3)).stops
    assert not points.receive(SaveProposal(2, step=5)).stops
    assert [points.end_step() for _ in range(3)] == [None, None, 1]


def test_a_program_that_wakes_late_finds_each_decision():
    """As one that is kept from its processor: its other thread has answered for the next proposal meanwhile."""
    points = SavePoints()
    assert points.receive(SaveProposal(1, step=1)).stops
    assert points.end_step() == 1
    points.receive(SaveDecision(1, save=False))
    assert points.receive(SaveProposal(2, step=3)).stops
    points.receive(SaveDecision(2, save=True))
    assert points.decided(1) is False
    assert [points.end_step() for _ in range(2)] == [None, 2]
    assert points.decided(2) is True

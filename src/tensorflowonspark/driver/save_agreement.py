"""The step after which all workers save, as they agree on it while they train.

Workers that take their steps together are in the midst of one, and not all in the same. So each is asked how many it
has ended, and a later one is proposed. A worker that has not ended that one stops after it until all have answered
(`node/save_points.py`). If one had gone further, all go on, and a step twice as far away is proposed.
"""

from collections.abc import Callable, Collection
from enum import Enum

from tensorflowonspark.messages import SaveDecision, SaveProposal, SaveReply

_AGAIN_SECONDS = 1.0


class _Stage(Enum):
    NONE = 0
    ASKED = 1  # how many steps each has ended
    PROPOSED = 2
    DECIDED = 3  # to save, which has not been done yet: another step would let some wait for others


class SaveAgreement:
    """One agreement of the workers at a time; all methods are called in events of the monitor.

    `send` takes the number of a node and a message, `later` makes a call after some seconds, and `workers` returns the
    numbers of the nodes that train.

    Examples
    --------
    >>> agreement = SaveAgreement(print, lambda seconds, call: None, lambda: [0])
    >>> agreement.begin()
    0 SaveProposal(number=1, step=None)
    >>> agreement.receive(0, SaveReply(1, taken=7, stops=False))
    0 SaveProposal(number=2, step=8)
    >>> agreement.receive(0, SaveReply(2, taken=7, stops=True))
    0 SaveDecision(number=2, save=True)
    """

    def __init__(
        self,
        send: Callable[[int, object], None],
        later: Callable[[float, Callable[[], None]], None],
        workers: Callable[[], Collection[int]],
    ) -> None:
        self._send = send
        self._later = later
        self._workers = workers
        self._stage = _Stage.NONE
        self._number = self._step = 0  # of the last proposal
        self._distance = 1  # of a proposed step from the last one that a worker has ended
        self._replies: dict[int, SaveReply] = {}

    def begin(self) -> None:
        """Have the workers agree on a step, unless they do already."""
        if self._stage is _Stage.NONE:
            self._distance = 1
            self._ask()
            self._look_later()

    def abandon(self) -> None:
        """Forget an agreement with workers that are no more."""
        self._stage = _Stage.NONE

    def end(self) -> None:
        """Note that they have saved."""
        if self._stage is _Stage.DECIDED:
            self._stage = _Stage.NONE

    def receive(self, node: int, reply: SaveReply) -> None:
        """Note the answer of a worker; go on when all have answered."""
        if reply.number == self._number:
            self._replies[node] = reply
            self._go_on()

    def _ask(self) -> None:
        self._stage = _Stage.ASKED
        self._send_all(None)

    def _propose(self, step: int) -> None:
        self._stage, self._step = _Stage.PROPOSED, step
        self._send_all(step)

    def _send_all(self, step: int | None) -> None:
        self._number += 1
        self._replies = {}
        for node in self._workers():
            self._send(node, SaveProposal(self._number, step))

    def _look_later(self) -> None:
        """Look from time to time whether one that has not answered is lost, and ask those that have not begun again."""

        def look() -> None:
            if self._stage is _Stage.ASKED:
                self._ask()
            elif self._stage is _Stage.PROPOSED:
                self._go_on()
            else:
                return
            self._look_later()

        self._later(_AGAIN_SECONDS, look)

    def _go_on(self) -> None:
        workers = self._workers()
        replies = [self._replies[node] for node in workers if node in self._replies]
        if not replies or len(replies) < len(workers) or self._stage not in (_Stage.ASKED, _Stage.PROPOSED):
            return
        if self._stage is _Stage.ASKED and not all(each.taken for each in replies):
            return  # they are asked again
        if self._stage is _Stage.PROPOSED:
            save = all(each.stops for each in replies)
            for node in workers:
                self._send(node, SaveDecision(self._number, save))
            if save:
                self._stage = _Stage.DECIDED
                return
            if all(each.taken < self._step for each in replies):  # one is about to stop, as agreed before
                self._stage = _Stage.ASKED
                return
            self._distance *= 2
        self._propose(max(each.taken for each in replies) + self._distance)

"""When all workers of a training save together because a host goes, and who goes.

The driver learns of a notice while the workers are in the midst of steps, and not all in the same one. It asks how many
steps each has ended, and proposes a later one. A worker that has not ended it yet stops there until the driver has the
answers of all, which come from another thread than the one that trains: so none waits for one that has gone further.
"""

import time
from dataclasses import dataclass

from tensorflowonspark.messages import Notice, SaveDecision, SaveProposal, SaveReply

__all__ = ["Preemption", "SavePoints"]


@dataclass(frozen=True)
class Preemption:
    """The nodes whose hosts go (`Context.preemption`).

    Attributes
    ----------
    nodes : tuple of str
        Their names, as in ``worker:1``.
    hosts : tuple of str
        The addresses of their hosts.
    reason : str
        What the notice says.
    until : float or None
        When they go, in seconds of ``time.time()`` on this host; None if the notice does not say it.
    """

    nodes: tuple[str, ...]
    hosts: tuple[str, ...]
    reason: str
    until: float | None


class SavePoints:
    """The notices that a node has received, and the step at which its program saves.

    Examples
    --------
    >>> points = SavePoints()
    >>> points.receive(SaveProposal(1, step=2))
    SaveReply(number=1, taken=0, stops=True)
    >>> points.end_step(), points.end_step()  # at the second one the program waits for what is decided
    (None, 1)
    >>> points.receive(SaveDecision(1, save=True))
    >>> points.decided(1)
    True
    """

    def __init__(self) -> None:
        self.notice = Notice(0)
        self.preemption: Preemption | None = None
        self._taken = 0  # steps after which the program has asked whether to save
        self._proposal = SaveProposal(0)
        self._decisions: dict[int, bool] = {}  # by proposal: a program may wake late for one

    def receive(self, message: Notice | SaveProposal | SaveDecision) -> SaveReply | None:
        """Note a message of the driver; return the answer, if it wants one."""
        match message:
            case Notice():
                until = None if message.seconds is None else time.time() + message.seconds
                self.notice = message
                self.preemption = (
                    Preemption(message.nodes, message.hosts, message.reason, until) if message.nodes else None
                )
            case SaveDecision():
                self._decisions[message.number] = message.save
            case SaveProposal():
                # Where all have agreed to stop, none may pass.
                is_bound = self._is_ahead(self._proposal) and self.decided(self._proposal.number) is not False
                stops = self._is_ahead(message) and not is_bound
                if stops:
                    self._proposal = message
                return SaveReply(message.number, self._taken, stops)
        return None

    def _is_ahead(self, proposal: SaveProposal) -> bool:
        return proposal.step is not None and proposal.step > self._taken

    def end_step(self) -> int | None:
        """Count a step; return the number of the proposal to stop after it, if there is one."""
        self._taken += 1
        return self._proposal.number if self._taken == self._proposal.step else None

    def decided(self, number: int) -> bool | None:
        """Return whether to save at the step of a proposal; None as long as the driver has not decided."""
        return self._decisions.get(number)

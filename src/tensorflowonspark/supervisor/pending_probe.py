"""The driver's last probe, until it is answered: the node has time to reply, and addresses are tried meanwhile."""

import math
import time
from collections.abc import Callable
from threading import Thread

from tensorflowonspark import transport
from tensorflowonspark.messages import Probe, ProbeReply

_REPLY_SECONDS = 0.5  # for the node to reply while the driver waits; native code may keep it from that


class PendingProbe:
    """Is asked for the answer when the node has replied, and when its time is over."""

    def __init__(self) -> None:
        self._probe: Probe | None = None
        self._ends = 0.0
        self._reaching = False  # the addresses that a probe names are being tried
        self._unreached: dict[str, str] = {}

    def begin(self, probe: Probe, reached: Callable[[dict[str, str]], None]) -> None:
        """Take a probe; `reached` is called with the addresses that don't answer, and why, in a thread."""
        if self._probe is None:
            self.extend()
        self._probe = probe
        if probe.addresses and not self._reaching:
            self._reaching = True
            Thread(target=lambda: reached(transport.unreached(probe.addresses)), daemon=True).start()

    def extend(self) -> None:
        """Give the node time: the event of its end may be about to come."""
        self._ends = time.monotonic() + _REPLY_SECONDS

    def note_unreached(self, unreached: dict[str, str]) -> None:
        """Note the addresses that have been tried in vain."""
        self._reaching, self._unreached = False, unreached

    @property
    def waits(self) -> bool:
        """Whether it can be answered."""
        return self._probe is not None and not self._reaching

    @property
    def seconds(self) -> float:
        """The seconds until the time of the node is over."""
        return max(0.0, self._ends - time.monotonic()) if self.waits else math.inf

    def answer(self) -> ProbeReply:
        """Return the answer; no probe is pending any more."""
        assert self._probe is not None
        number, self._probe = self._probe.number, None
        return ProbeReply(number, self._unreached)

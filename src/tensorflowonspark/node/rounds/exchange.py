"""One exchange of a round: each contributor owns a slice of the weights, receives it from all, and returns the mean.

A dialogue with each other contributor carries both directions: this worker's part of the owner's slice, message by
message, and for each message the mean of all. Sums are in the order of the contributors, so that every worker receives
the same bytes, and the owner decodes what it sends.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Condition, Thread
from typing import Any

import numpy as np
import pyarrow as pa

from tensorflowonspark import transport
from tensorflowonspark.errors import ClusterError
from tensorflowonspark.keras.round_state import RoundSettings, Vector
from tensorflowonspark.messages import Peer, RoundBroken, RoundExchanged, RoundPlan
from tensorflowonspark.node.rounds.codec import decode, encode, pieces

DATA = pa.schema([("data", pa.binary())])
_ANSWER_SECONDS = 5.0  # more than the owner of a slice waits, for its error to arrive


@dataclass(frozen=True)
class SliceHeader:
    """A dialogue in which a contributor sends its part of the owner's slice."""

    number: int
    sender: int


class _SliceMeans:
    """The means of this worker's slice, piece by piece; each is complete with the values of all senders."""

    def __init__(self, senders: Sequence[int], *, half: bool) -> None:
        self._senders = senders
        self._half = half
        self._parts: defaultdict[int, dict[int, Vector]] = defaultdict(dict)  # by piece and sender
        self.ready: dict[int, bytes] = {}  # by piece, as they are sent

    def add(self, piece: int, sender: int, values: Vector) -> None:
        """Add the values of a sender; they may come again, by another connection."""
        if piece in self.ready:
            return
        parts = self._parts[piece]
        parts[sender] = values
        if len(parts) == len(self._senders):
            total = parts[self._senders[0]].copy()
            for each in self._senders[1:]:
                total += parts[each]
            total /= len(self._senders)
            self.ready[piece] = encode(total, half=self._half)
            del self._parts[piece]

    def absent(self) -> set[int]:
        """Return the senders for which a piece waits."""
        return {sender for parts in self._parts.values() for sender in self._senders if sender not in parts}


class RoundExchange:
    """A worker's part in one exchange, in threads of its own.

    It fails after the settings' `timeout` without any progress. `report` takes the message to the driver with which it
    ends; after a `RoundExchanged` the `mean` change is complete.
    """

    def __init__(
        self,
        plan: RoundPlan,
        number: int,
        change: Vector,
        settings: RoundSettings,
        *,
        connect: Callable[[Peer], transport.Connection],
        report: Callable[[object], None],
    ) -> None:
        self.plan = plan
        self.mean = np.empty_like(change)
        self.sent_bytes = 0
        self._own = number
        self._change = change
        self._settings = settings
        self._connect = connect
        self._report = report
        self._changed = Condition()
        self._progress = time.monotonic()
        self._aborted = ""
        self._ended: dict[int, str] = {}  # the error of each dialogue, by peer; empty: its slice is here
        self._dialogues: list[transport.Exchange] = []
        senders = [each.number for each in plan.contributors]
        self._means = _SliceMeans(senders, half=settings.half)
        bounds = [len(change) * i // len(senders) for i in range(len(senders) + 1)]
        self._slices = {each: slice(*bounds[i : i + 2]) for i, each in enumerate(senders)}
        for peer in plan.contributors:
            target = self._talk if peer.number != number else self._contribute_own
            Thread(target=target, args=(peer,), daemon=True).start()
        Thread(target=self._watch, daemon=True).start()

    def abort(self, reason: str) -> None:
        """End the exchange; it reports nothing any more."""
        with self._changed:
            self._aborted = self._aborted or reason
            dialogues, self._dialogues = self._dialogues, []
            self._changed.notify_all()
        for each in dialogues:
            each.cancel()

    # ---- as the owner of a slice

    def serve(self, header: SliceHeader, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Take a contributor's part of this worker's slice; yield the mean for each message of it.

        A `ClusterError` says that another contributor sends nothing, or that the exchange has ended.
        """
        part = self._part_of(self._own)
        for piece, (where, batch) in enumerate(zip(pieces(len(part)), batches, strict=False)):
            values = self._decoded(batch, where)
            mean = self._add(piece, header.sender, values)
            with self._changed:
                self.sent_bytes += len(mean)
            yield pa.record_batch([pa.array([mean], pa.binary())], schema=DATA)

    def _decoded(self, batch: pa.RecordBatch, where: slice) -> Vector:
        data = batch.column(0)[0].as_buffer()
        return decode(data, where.stop - where.start, half=self._settings.half, dtype=self._change.dtype)

    def _part_of(self, owner: int) -> Vector:
        return self._change[self._slices[owner]]

    def _contribute_own(self, peer: Peer) -> None:
        part = self._part_of(peer.number)
        mean = self.mean[self._slices[peer.number]]
        try:
            for piece, where in enumerate(pieces(len(part))):
                data = self._add(piece, peer.number, part[where])
                mean[where] = decode(data, where.stop - where.start, half=self._settings.half, dtype=mean.dtype)
        except ClusterError:
            return  # the watching thread reports it
        self._finish(peer.number)

    def _add(self, piece: int, sender: int, values: Vector) -> bytes:
        """Add a contribution; wait for those of all others and return the mean, as it is sent."""
        with self._changed:
            self._note_progress()
            self._means.add(piece, sender, values)
            while piece not in self._means.ready and not self._aborted:
                self._changed.wait()
            if piece not in self._means.ready:
                raise ClusterError(self._aborted)
            return self._means.ready[piece]

    # ---- as a contributor to the slices of others

    def _talk(self, peer: Peer) -> None:
        """Send a peer the part of its slice, and take its means; a connection that breaks is made once more."""
        for last in (False, True):
            try:
                if self._send_part(peer):
                    self._finish(peer.number)
                return
            except (transport.ConnectionLost, ClusterError, ValueError, pa.ArrowException) as error:
                with self._changed:
                    if last or self._aborted or not isinstance(error, transport.ConnectionLost):
                        self._ended[peer.number] = str(error) or type(error).__name__
                        self._changed.notify_all()
                        return

    def _send_part(self, peer: Peer) -> bool:
        """Return whether all means are here; False if the exchange has been aborted."""
        part = self._part_of(peer.number)
        if not len(part):  # there are more workers than weights
            return True
        mean = self.mean[self._slices[peer.number]]
        dialogue = self._connect(peer).exchange(SliceHeader(self.plan.number, self._own), DATA)
        try:
            with self._changed:
                if self._aborted:
                    return False
                self._dialogues.append(dialogue)
            for where in pieces(len(part)):
                data = encode(part[where], half=self._settings.half)
                (answer,) = dialogue.request(pa.record_batch([pa.array([data], pa.binary())], schema=DATA))
                mean[where] = self._decoded(answer, where)
                with self._changed:
                    self.sent_bytes += len(data)
                    self._note_progress()
            return True
        finally:
            with self._changed:
                if dialogue in self._dialogues:
                    self._dialogues.remove(dialogue)
            with suppress(transport.ConnectionLost):
                dialogue.close()

    def _finish(self, owner: int) -> None:
        with self._changed:
            self._ended[owner] = ""
            self._note_progress()

    # ---- its end

    def _note_progress(self) -> None:
        self._progress = time.monotonic()
        self._changed.notify_all()

    def _watch(self) -> None:
        """Report to the driver how the exchange has ended."""
        with self._changed:
            while not self._aborted and not any(self._ended.values()) and len(self._ended) < len(self._slices):
                rest = self._progress + self._settings.timeout - time.monotonic()
                if rest <= 0:
                    break
                self._changed.wait(rest)
            if self._aborted:
                return
            if len(self._ended) == len(self._slices) and not any(self._ended.values()):
                message: Any = RoundExchanged(self.plan.number)
            else:
                message = self._broken()
        self._report(message)

    def _broken(self) -> RoundBroken:
        failed = {number for number, error in self._ended.items() if error}
        missing = failed or self._means.absent() or self._slices.keys() - self._ended.keys() - {self._own}
        number = min(missing, default=self._own)
        name = next(f"{each.name} on {each.host}" for each in self.plan.contributors if each.number == number)
        why = self._ended.get(number) or f"nothing of it has arrived for {self._settings.timeout:g} s (timeout)"
        return RoundBroken(self.plan.number, tuple(sorted(missing)), f"{name}: {why}")


def request_all(
    connection: transport.Connection, header: Any, watch: Callable[[transport.Exchange], None]
) -> Iterator[pa.RecordBatch]:
    """Yield all batches with which a server answers a header."""
    exchange = connection.exchange(header, DATA)
    watch(exchange)
    yield from exchange.drain()

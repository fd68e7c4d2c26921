"""One exchange of a round: each contributor owns a slice of the weights, receives it from all, and returns the mean.

A dialogue with each other contributor carries both directions: this worker's part of the owner's slice, message by
message, and for each message the mean of all. Sums are in the order of the contributors, so that every worker receives
the same bytes, and the owner decodes what it sends.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from threading import Condition, Thread
from typing import Any

import numpy as np
import pyarrow as pa

from tensorflowonspark import transport
from tensorflowonspark.errors import ClusterError
from tensorflowonspark.keras.round_state import Vector
from tensorflowonspark.messages import Peer, RoundBroken, RoundExchanged, RoundPlan
from tensorflowonspark.node.rounds.codec import decode, encode, pieces

DATA = pa.schema([("data", pa.binary())])
_ANSWER_SECONDS = 5.0  # more than the owner of a slice waits, for its error to arrive


@dataclass(frozen=True)
class SliceHeader:
    """A dialogue in which a contributor sends its part of the owner's slice."""

    number: int
    sender: int


class RoundExchange:
    """A worker's part in one exchange, in threads of its own.

    It fails after `timeout` seconds without any progress. `report` takes the message to the driver with which it ends;
    after a `RoundExchanged` the `mean` change is complete. `half` sends changes as float16.
    """

    def __init__(
        self,
        plan: RoundPlan,
        number: int,
        change: Vector,
        *,
        half: bool,
        timeout: float,
        connect: Callable[[Peer], transport.Connection],
        report: Callable[[object], None],
    ) -> None:
        self.number = plan.number
        self.mean = np.empty_like(change)
        self.sent_bytes = 0
        self._own = number
        self._change = change
        self._half = half
        self._timeout = timeout
        self._connect = connect
        self._report = report
        self._changed = Condition()
        self._progress = time.monotonic()
        self._aborted = ""
        self._failed: dict[int, str] = {}  # the errors of dialogues, by peer
        self._finished: set[int] = set()  # contributors whose slices are here
        self._dialogues: list[transport.Exchange] = []
        self._parts: defaultdict[int, dict[int, Vector]] = defaultdict(dict)  # of this slice: by piece and sender
        self._means: dict[int, bytes] = {}  # of this slice, by piece
        self._senders = [each.number for each in plan.contributors]
        self._names = {each.number: f"{each.name} on {each.host}" for each in plan.contributors}
        bounds = [len(change) * i // len(self._senders) for i in range(len(self._senders) + 1)]
        self._slices = {each: slice(*bounds[i : i + 2]) for i, each in enumerate(self._senders)}
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
        return decode(data, where.stop - where.start, half=self._half, dtype=self._change.dtype)

    def _part_of(self, owner: int) -> Vector:
        return self._change[self._slices[owner]]

    def _contribute_own(self, peer: Peer) -> None:
        part = self._part_of(peer.number)
        mean = self.mean[self._slices[peer.number]]
        try:
            for piece, where in enumerate(pieces(len(part))):
                data = self._add(piece, peer.number, part[where])
                mean[where] = decode(data, where.stop - where.start, half=self._half, dtype=mean.dtype)
        except ClusterError:
            return  # the watching thread reports it
        self._finish(peer.number)

    def _add(self, piece: int, sender: int, values: Vector) -> bytes:
        """Add a contribution; wait for those of all others and return the mean, as it is sent."""
        with self._changed:
            self._note_progress()
            if piece not in self._means:  # else it comes again, by another connection
                self._parts[piece][sender] = values
                self._average(piece)
            while piece not in self._means and not self._aborted:
                self._changed.wait()
            if piece not in self._means:
                raise ClusterError(self._aborted)
            return self._means[piece]

    def _average(self, piece: int) -> None:
        """Make the mean of a piece if it is complete."""
        parts = self._parts[piece]
        if len(parts) == len(self._senders):
            total = parts[self._senders[0]].copy()
            for each in self._senders[1:]:
                total += parts[each]
            total /= len(self._senders)
            self._means[piece] = encode(total, half=self._half)
            del self._parts[piece]

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
                        self._failed[peer.number] = str(error)
                        self._changed.notify_all()
                        return

    def _send_part(self, peer: Peer) -> bool:
        """Return whether all means are here; False if the exchange has been aborted."""
        part = self._part_of(peer.number)
        if not len(part):  # there are more workers than weights
            return True
        mean = self.mean[self._slices[peer.number]]
        dialogue = self._connect(peer).exchange(SliceHeader(self.number, self._own), DATA)
        try:
            with self._changed:
                if self._aborted:
                    return False
                self._dialogues.append(dialogue)
            for where in pieces(len(part)):
                data = encode(part[where], half=self._half)
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
            self._finished.add(owner)
            self._note_progress()

    # ---- its end

    def _note_progress(self) -> None:
        self._progress = time.monotonic()
        self._changed.notify_all()

    def _watch(self) -> None:
        """Report to the driver how the exchange has ended."""
        with self._changed:
            while not self._aborted and not self._failed and len(self._finished) < len(self._senders):
                rest = self._progress + self._timeout - time.monotonic()
                if rest <= 0:
                    break
                self._changed.wait(rest)
            if self._aborted:
                return
            if len(self._finished) == len(self._senders):
                message: Any = RoundExchanged(self.number)
            else:
                message = self._broken()
        self._report(message)

    def _broken(self) -> RoundBroken:
        absent = {sender for parts in self._parts.values() for sender in self._senders if sender not in parts}
        missing = set(self._failed) or absent or set(self._senders) - self._finished - {self._own}
        number = min(missing, default=self._own)
        why = self._failed.get(number) or f"nothing of it has arrived for {self._timeout:g} s (timeout)"
        return RoundBroken(self.number, tuple(sorted(missing)), f"{self._names[number]}: {why}")


def request_all(
    connection: transport.Connection, header: Any, watch: Callable[[transport.Exchange], None]
) -> Iterator[pa.RecordBatch]:
    """Yield all batches with which a server answers a header."""
    exchange = connection.exchange(header, DATA)
    watch(exchange)
    yield from exchange.drain()

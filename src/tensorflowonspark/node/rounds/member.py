"""A worker's part in all rounds: it reports to the driver, follows its plans, and serves its weights to others."""

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Condition, Lock, Timer
from typing import Any

import numpy as np
import pyarrow as pa

from tensorflowonspark import transport
from tensorflowonspark.errors import ClusterError
from tensorflowonspark.keras.round_state import (
    RoundSettings,
    Shared,
    Vector,
    first_shared,
    outer_step,
)
from tensorflowonspark.keras.waiting import waiting_in_round
from tensorflowonspark.messages import NOTHING_SHARED, Peer, RoundPlan, RoundReached, RoundRefused, RoundResult
from tensorflowonspark.node.driver_link import Link
from tensorflowonspark.node.rounds.codec import decode, encode, pieces
from tensorflowonspark.node.rounds.exchange import DATA, RoundExchange, SliceHeader, request_all
from tensorflowonspark.node.setup import NodeSetup
from tensorflowonspark.settings import port_range

_ATTEMPTS, _RETRY_SECONDS = 10, 0.5  # to take the weights of workers that are lost, which the driver may not know yet


@dataclass(frozen=True)
class _WeightsHeader:
    """A request for what the workers share, of this version or a later one."""

    version: int
    timeout: float


class RoundMember:
    """A worker of a cluster in its rounds; the server for the other workers starts with the first one.

    `size` is the number of the cluster's workers, `sent_bytes` the weights that it has sent to others.
    """

    def __init__(self, setup: NodeSetup, link: Link) -> None:
        self.name = f"{setup.role} on {setup.host}"
        self.size = len(setup.spec.fed)
        self.sent_bytes = 0
        self._setup = setup
        self._link = link
        self._settings: RoundSettings | None = None
        self._shared: Shared | None = None
        self._exchange: RoundExchange | None = None
        self._ended = -1  # the number of the newest exchange that has ended
        self._closed = False
        self._changed = Condition()  # of the four above
        self._server: transport.Server | None = None
        self._credentials = setup.credentials  # with the patience of the rounds
        self._connections: dict[Peer, transport.Connection] = {}
        self._connecting = Lock()

    def join(self, settings: RoundSettings, weights: Vector) -> tuple[Shared, bool]:
        """Begin the training; return what all share, and whether the training of the others has ended.

        A `ClusterError` says that the others have another model or other settings, or that too few come.
        """
        self._settings = settings
        with self._changed:
            self._shared = None
        return self._reach(settings, weights, 0, last=False)

    def average(self, weights: Vector, steps: int, last: bool) -> tuple[Shared, bool]:
        """Take part in a round; return what all share after it, and whether the training of all has ended with it.

        `steps` are those since the last round. With `last` this worker takes no further one: it waits until the
        training of all workers has ended. A `ClusterError` says that too few workers come, or that the exchange fails
        although all are alive.
        """
        assert self._settings is not None
        return self._reach(self._settings, weights, steps, last=last)

    # ---- the dialogue with the driver

    def _reach(self, settings: RoundSettings, weights: Vector, steps: int, *, last: bool) -> tuple[Shared, bool]:
        port = self._listen(settings)
        for _ in range(_ATTEMPTS):
            version = NOTHING_SHARED if self._shared is None else self._shared.version
            report = RoundReached(
                port,
                version,
                steps,
                last,
                settings.min_workers,
                settings.timeout,
                settings.signature,
                self._setup.identity,
            )
            self._link.send(report)
            result = self._follow(settings, weights)
            while last and result is not None and not result.final:
                result = self._follow(settings, weights)  # until the others have ended
            if result is not None and self._shared is not None:
                return self._shared, result.final
            time.sleep(_RETRY_SECONDS)
        raise ClusterError(
            f"{self.name} can't take the weights of the other workers, none of which has answered {_ATTEMPTS} "
            "requests: see their output"
        )

    def _follow(self, settings: RoundSettings, weights: Vector) -> RoundResult | None:
        """Return the result of the next round that is completed; None if no worker can give its weights."""
        while True:
            with waiting_in_round():
                message = self._link.wait_for_round()
            if isinstance(message, RoundPlan):
                self._begin(message, settings, weights)
            elif isinstance(message, RoundRefused):
                self._end_exchange(self._ended, message.reason)
                raise ClusterError(message.reason)
            else:
                return message if self._finish(message, settings, weights) else None

    def _begin(self, plan: RoundPlan, settings: RoundSettings, weights: Vector) -> None:
        assert self._shared is not None
        self._end_exchange(plan.number - 1, "the round has begun again without a worker that is lost")
        exchange = RoundExchange(
            plan,
            self._setup.number,
            weights - self._shared.weights,
            settings,
            connect=self._connection,
            report=self._link.send,
        )
        with self._changed:
            self._exchange = exchange
            self._changed.notify_all()

    def _finish(self, result: RoundResult, settings: RoundSettings, weights: Vector) -> bool:
        """Take the result of a round; return whether there is one."""
        shared = self._shared
        if self._setup.number not in [each.number for each in result.holders]:
            self._end_exchange(result.number, "the round is over")
            return self._take(result, settings)
        if not result.averaged:
            new = replace(shared, version=result.number) if shared else first_shared(settings, weights, result.number)
        else:
            assert shared is not None
            assert self._exchange is not None
            new = outer_step(settings, shared, self._exchange.mean, result.number)
        with self._changed:
            self._shared = new
            self._changed.notify_all()
        self._forget_exchange(result.number)
        return True

    def _forget_exchange(self, number: int) -> None:
        """Note that an exchange is complete; dialogues of it may still be sending means that are known."""
        with self._changed:
            exchange, self._exchange = self._exchange, None
            self._ended = max(self._ended, number)
            if exchange is not None:
                self.sent_bytes += exchange.sent_bytes
            self._changed.notify_all()

    def _end_exchange(self, number: int, reason: str) -> None:
        exchange = self._exchange
        self._forget_exchange(number)
        if exchange is not None:
            exchange.abort(reason)

    # ---- weights of others

    def _take(self, result: RoundResult, settings: RoundSettings) -> bool:
        """Take the weights from a worker that has them; return whether one has answered."""
        for holder in result.holders:
            with suppress(transport.ConnectionLost, ValueError, StopIteration):
                taken = self._fetch(holder, result.number, settings)
                with self._changed:
                    self._shared = taken
                    self._changed.notify_all()
                return True
        return False

    def _fetch(self, holder: Peer, version: int, settings: RoundSettings) -> Shared:
        timers: list[Timer] = []

        def watch(exchange: transport.Exchange) -> None:
            timer = Timer(2 * settings.timeout, exchange.cancel)  # the holder waits as long as that at most
            timer.daemon = True
            timer.start()
            timers.append(timer)

        try:
            answers = request_all(self._connection(holder), _WeightsHeader(version, settings.timeout), watch)
            head = np.frombuffer(next(answers).column(0)[0].as_buffer(), "<i8")
            weights, momentum = (_gather(answers, int(size), settings.dtype) for size in head[1:])
            for _ in answers:
                pass
            return Shared(int(head[0]), weights, momentum)
        finally:
            for timer in timers:
                timer.cancel()

    def _connection(self, peer: Peer) -> transport.Connection:
        with self._connecting:
            if peer not in self._connections:
                address = peer.host, peer.port
                self._connections[peer] = transport.connect(address, self._credentials, identity=peer.identity)
            return self._connections[peer]

    # ---- as a server

    def _listen(self, settings: RoundSettings) -> int:
        if self._server is None:
            setup = self._setup
            self._credentials = replace(setup.credentials, patience=settings.timeout)
            self._server = transport.Server(
                (setup.host, port_range(setup.config.ports)),
                self._credentials,
                identity=setup.identity,
                on_exchange=self._serve,
            )
            self._server.expect(2 * len(setup.spec.fed))
        return self._server.port

    def _serve(self, header: Any, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if isinstance(header, SliceHeader):
            return self._exchange_of(header).serve(header, batches)
        if isinstance(header, _WeightsHeader):
            return self._send_weights(header, batches)
        raise ClusterError(f"{self.name} serves weights, and received a {type(header).__name__}")

    def _exchange_of(self, header: SliceHeader) -> RoundExchange:
        """Wait until this worker has begun an exchange, and return it."""
        timeout = self._settings.timeout if self._settings else 0.0
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._closed
                    or self._ended >= header.number
                    or (self._exchange is not None and self._exchange.plan.number >= header.number)
                ),
                timeout,
            )
            if self._exchange is None or self._exchange.plan.number != header.number:
                raise ClusterError(f"{self.name} takes no part in round {header.number}")
            return self._exchange

    def _send_weights(self, header: _WeightsHeader, requests: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in requests:  # there is none; but a call that ended before the other side has sent that would fail there
            pass
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or (self._shared is not None and self._shared.version >= header.version),
                header.timeout,
            )
            shared = self._shared
        if shared is None or shared.version < header.version:
            raise ClusterError(f"{self.name} does not have the weights of round {header.version}")
        vectors = shared.weights, shared.momentum
        head = np.array([shared.version, *map(len, vectors)], "<i8")
        yield pa.record_batch([pa.array([head.tobytes()], pa.binary())], schema=DATA)
        for vector in vectors:
            for where in pieces(len(vector)):
                data = encode(vector[where], half=False)
                self.sent_bytes += len(data)
                yield pa.record_batch([pa.array([data], pa.binary())], schema=DATA)

    def close(self) -> None:
        """Stop serving."""
        self._closed = True
        self._end_exchange(self._ended, "the worker ends")
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.close()
        server, self._server = self._server, None
        if server is not None:
            server.close()


def _gather(answers: Iterator[pa.RecordBatch], size: int, dtype: np.dtype[Any]) -> Vector:
    vector = np.empty(size, dtype)
    for where in pieces(size):
        data = next(answers).column(0)[0].as_buffer()
        vector[where] = decode(data, where.stop - where.start, half=False, dtype=dtype)
    return vector

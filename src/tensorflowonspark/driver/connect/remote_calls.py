"""Calls of a driver that runs in a Spark task, from where there is only a session of Spark Connect.

The client and the executors can't reach each other, but each task can reach the driver. So a request is a Spark job of
one task, which connects to the driver, sends it and returns the reply. The driver can't start Spark jobs: what it needs
of them, as the stage that launches nodes or a job that feeds, it puts into its replies, the client runs it, and the
next request has its result.

Spark may run a task twice: the same request begins a call once, and events are numbered.
"""

import logging
import pickle
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Condition, Lock, Thread
from typing import TYPE_CHECKING, Any

import cloudpickle
import pyarrow as pa

from tensorflowonspark.columns import map_in_arrow
from tensorflowonspark.driver.connect.task_backend import pieces
from tensorflowonspark.driver.spark.gpu_profiles import gpu_profile_of_connect
from tensorflowonspark.supervisor.output import level_of
from tensorflowonspark.transport import Credentials, connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NODES = logging.getLogger("tensorflowonspark.nodes")
_IDLE_SECONDS = 5.0  # for which a request waits at the driver for something to happen: it has a slot meanwhile
_BESIDE_SECONDS = 0.5  # between two requests beside a job, which may need all slots


class DriverLost(Exception):
    """A request has not reached the driver, or not come back."""


@dataclass(frozen=True)
class RemoteFrame:
    """A DataFrame that the client has, by its name."""

    name: str


@dataclass(frozen=True)
class RunJob:
    """Apply a function to each partition of a DataFrame, and collect the rows that it returns."""

    number: int  # of the job
    function: bytes = field(repr=False)  # as cloudpickle has it: of the partition's batches
    schema: str
    frame: str  # its name; empty: one empty partition for each task
    tasks: int = 0
    barrier: bool = False
    gpus: int | None = None  # of each task


@dataclass(frozen=True)
class CancelJob:
    """Cancel a job."""

    number: int


@dataclass(frozen=True)
class Outcome:
    """The end of a call: what it returned, or the error that it raised, as cloudpickle has it."""

    value: bytes = field(repr=False)
    failed: bool


Event = RunJob | CancelJob | Outcome


@dataclass(frozen=True)
class JobEnded:
    """The rows of a job, or the text of its error."""

    number: int
    rows: list[Any]
    error: str | None


@dataclass(frozen=True)
class Request:
    """One of a call's requests: it begins the call, if that is new, and asks for the events that the client lacks."""

    call: str
    name: str
    arguments: bytes = field(repr=False)
    seen: int = 0
    shown: int | None = 0  # lines of output that the client has; None: it wants none
    ended: tuple[JobEnded, ...] = ()
    seconds: float = 0.0  # to wait at most for an event


@dataclass(frozen=True)
class TaskProgress:
    """A task of a job has begun, or ended. The reply is whether the job is still wanted.

    The client may not be able to ask for that: Spark gives its request a slot when all tasks of the job have one.
    """

    call: str
    job: int
    ended: bool


@dataclass(frozen=True)
class Reply:
    """The events that the client lacked, and the output of the nodes and the driver."""

    events: tuple[Event, ...]
    output: tuple[str, ...] = ()
    first: int = 0  # the number of its first line


class RemoteDriver:
    """The client's end. It pickles, so that also Spark's micro-batches can call the driver (`foreachBatch`)."""

    def __init__(self, address: tuple[str, int], credentials: Credentials) -> None:
        self._address = address
        self._credentials = credentials

    def call(
        self,
        spark: "SparkSession",
        name: str,
        *arguments: Any,
        frames: "Mapping[str, DataFrame] | None" = None,
        output: "Output | None" = None,
    ) -> Any:
        """Return what a function of the driver returns, or raise what it raises; meanwhile run the jobs that it needs.

        `frames` are those whose names the arguments of this call and of earlier ones have.
        """
        jobs = _Jobs(spark, frames or {})
        request = Request(uuid.uuid4().hex, name, cloudpickle.dumps(arguments), shown=None)
        try:
            while True:
                seconds = 0.0 if jobs.running else _IDLE_SECONDS
                shown = None if output is None else output.lines
                request = replace(request, shown=shown, ended=jobs.ended(), seconds=seconds)
                reply = self._ask(spark, request)
                if output is not None:
                    output.show(reply.output, reply.first)
                for event in reply.events:
                    if isinstance(event, Outcome):
                        value = pickle.loads(event.value)
                        if event.failed:
                            raise value
                        return value
                    jobs.take(event)
                request = replace(request, seen=request.seen + len(reply.events))
                jobs.wait(_BESIDE_SECONDS)
        finally:
            jobs.cancel()

    def ask(self, message: object) -> bytes:
        """Send a message from a task, and return the reply, which is pickled."""
        with closing(connect(self._address, self._credentials)) as connection, closing(connection.channel()) as channel:
            channel.send(message)
            return bytes(channel.receive())

    def _ask(self, spark: "SparkSession", request: Request) -> Reply:
        send = partial(_forward, self, request)
        try:
            rows = map_in_arrow(spark.range(0, 1, 1, 1), send, "piece binary").collect()
        except Exception as error:
            raise DriverLost(str(error)) from error
        reply = pickle.loads(b"".join(bytes(row.piece) for row in rows))
        assert isinstance(reply, Reply)
        return reply


def _forward(driver: RemoteDriver, request: Request, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run in a task: send a request, and return the pieces of the reply."""
    for _ in batches:
        pass
    yield from (pa.RecordBatch.from_pydict({"piece": [piece]}) for piece in pieces(driver.ask(request)))


class Output:
    """What the nodes and the driver have written: each line once, on a stream, or as the program's logging shows it."""

    def __init__(self, stream: Any) -> None:
        self.lines = 0
        self._stream = stream
        self._lock = Lock()

    def show(self, lines: tuple[str, ...], first: int) -> None:
        """Write the lines from a number on, but for those that another thread has written."""
        with self._lock:
            new = lines[max(0, self.lines - first) :]
            self.lines = max(self.lines, first + len(lines))
            if _NODES.hasHandlers():
                for line in new:
                    _NODES.log(level_of(line), "%s", line.rstrip("\n"))
            elif new:
                self._stream.write("".join(new))
                self._stream.flush()


class _Jobs:
    """The Spark jobs of one call."""

    def __init__(self, spark: "SparkSession", frames: "Mapping[str, DataFrame]") -> None:
        self._spark = spark
        self._frames = frames
        self._changed = Condition()
        self._tags: dict[int, str] = {}  # of those that run
        self._ends: list[JobEnded] = []

    @property
    def running(self) -> bool:
        """Whether one runs."""
        return bool(self._tags)

    def take(self, event: RunJob | CancelJob) -> None:
        """Start a job, or cancel one."""
        if isinstance(event, CancelJob):
            self._interrupt(event.number)
        else:
            self._tags[event.number] = tag = f"tensorflowonspark-{uuid.uuid4().hex}"
            Thread(target=self._run, args=(event, tag), daemon=True).start()

    def ended(self) -> tuple[JobEnded, ...]:
        """Return those that have ended since the last time."""
        with self._changed:
            ends, self._ends = self._ends, []
            return tuple(ends)

    def wait(self, seconds: float) -> None:
        """Wait for the end of one, if one runs."""
        with self._changed:
            self._changed.wait_for(lambda: self._ends or not self._tags, seconds)

    def cancel(self) -> None:
        """Cancel those that run."""
        for number in list(self._tags):
            self._interrupt(number)

    def _interrupt(self, number: int) -> None:
        tag = self._tags.get(number)
        if tag is not None:
            self._spark.interruptTag(tag)

    def _run(self, wanted: RunJob, tag: str) -> None:
        rows, problem = [], None
        try:
            self._spark.addTag(tag)
            frame = self._frames[wanted.frame] if wanted.frame else self._spark.range(0, wanted.tasks, 1, wanted.tasks)
            function = pickle.loads(wanted.function)
            gpus = wanted.gpus
            profile = {} if gpus is None else {"profile": gpu_profile_of_connect(self._spark, gpus)}
            rows = map_in_arrow(frame, function, wanted.schema, barrier=wanted.barrier, **profile).collect()
        except BaseException as error:
            problem = str(error) or type(error).__name__
        with self._changed:
            self._ends.append(JobEnded(wanted.number, list(rows), problem))
            del self._tags[wanted.number]
            self._changed.notify_all()

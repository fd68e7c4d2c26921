"""The driver's part of a `Cluster` whose session is a client of Spark Connect, in a Spark task that lasts as long.

The task belongs to a barrier stage of two. The other one only returns the address at which this one listens, which
Spark passes on to the client as soon as that task has ended. Each request of the client (`remote_calls`) begins a call,
or brings the ends of the jobs that the call has asked for.
"""

import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import Condition, Event, Thread, local
from typing import Any, TextIO

import cloudpickle
import pyarrow as pa

from tensorflowonspark.config import ClusterConfig
from tensorflowonspark.driver.cluster import Cluster
from tensorflowonspark.driver.connect.remote_calls import (
    CancelJob,
    Outcome,
    RemoteDriver,
    RemoteFrame,
    Reply,
    Request,
    RunJob,
    TaskProgress,
)
from tensorflowonspark.driver.connect.remote_calls import Event as CallEvent
from tensorflowonspark.driver.connect.task_backend import TaskBackend
from tensorflowonspark.driver.dashboard.page import report_html
from tensorflowonspark.driver.feed.job import FeedRequest
from tensorflowonspark.driver.feed.structured_streaming import StreamedBatches
from tensorflowonspark.driver.run_results import Results
from tensorflowonspark.driver.spark.backend import Backend
from tensorflowonspark.driver.spark.jobs import Job, LaunchStage, PartitionFunction, Stage, run_in_task
from tensorflowonspark.driver.spark.resources import listen
from tensorflowonspark.messages import NodeEndpoint
from tensorflowonspark.task.launch import PROBLEM_SCHEMA, LaunchPlan, launch_node, own_address
from tensorflowonspark.transport import Channel, Credentials

ADDRESS_SCHEMA = "host string, port int"
_SEEN = ("id", "nodes", "tensorboard_url", "advice")  # the members of a cluster that the client looks at
_FIRST_SECONDS = 120.0  # for the client's first request
_OUTPUT_SECONDS = 0.5  # for more lines to come, before a request returns for its output alone
_KEPT_CALLS = 100  # of those that have returned: Spark may repeat the task of a request
_LINES = 10_000  # of output that are kept for a client that asks for nothing
_current = local()  # the call of a thread


@dataclass(frozen=True)
class DriverPlan:
    """The cluster whose driver a task is."""

    config: ClusterConfig
    name: str
    credentials: Credentials  # of the client's requests
    hadoop: dict[str, str] = field(repr=False)
    tls: bool  # whether Spark's settings ask for encrypted connections


def drive(plan: DriverPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run in a task of two: return the address of the other one; or listen there, and serve the client to its end."""
    from pyspark import BarrierTaskContext

    for _ in batches:
        pass
    task = BarrierTaskContext.get()
    if not task.partitionId():
        host, _, port = task.allGather("")[1].rpartition(":")
        yield pa.RecordBatch.from_arrays([pa.array([host]), pa.array([int(port)], pa.int32())], ["host", "port"])
        return
    host = own_address(task)
    lines = _Lines()
    calls = _CallServer(lines)
    server, (_, port) = listen((host, host), plan.credentials, calls.serve, plan.config.ports)
    backend = _ClientBackend(RemoteDriver((host, port), plan.credentials), host, plan)
    with _copied_to(lines.write):
        calls.functions = _DriverPart(backend, plan.config, plan.name)
        try:
            task.allGather(f"{host}:{port}")
            calls.serve_to_the_end()
        finally:
            server.close()


@contextmanager
def _copied_to(write: Callable[[str], None]) -> Iterator[None]:
    """Have what this process writes to its standard error, for the executor's log, passed on as well."""
    former = sys.stderr
    sys.stderr = _Tee(former, write)
    try:
        yield
    finally:
        sys.stderr = former


class _Tee:
    def __init__(self, stream: TextIO, write: Callable[[str], None]) -> None:
        self._stream = stream
        self._write = write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def fileno(self) -> int:
        raise OSError("it is no file")

    def isatty(self) -> bool:
        return False

    def write(self, text: str) -> int:
        self._write(text)
        return self._stream.write(text)


class _Lines:
    """The last lines of output; `changed` is notified of new ones."""

    def __init__(self) -> None:
        self.changed = Condition()
        self._lines: list[str] = []
        self._dropped = 0
        self._rest = ""

    def write(self, text: str) -> None:
        """Add a text."""
        with self.changed:
            *lines, self._rest = (self._rest + text).split("\n")
            self._lines += [f"{line}\n" for line in lines]
            more = max(0, len(self._lines) - _LINES)
            del self._lines[:more]
            self._dropped += more
            self.changed.notify_all()

    def after(self, count: int | None) -> tuple[tuple[str, ...], int]:
        """Return the lines that come after so many, none for None, and the number of the first."""
        first = self._dropped + len(self._lines) if count is None else max(count, self._dropped)
        return tuple(self._lines[first - self._dropped :]), first


# ---- calls


class _Call:
    """One call: its events so far, and its jobs."""

    def __init__(self, name: str, changed: Condition) -> None:
        self.name = name
        self.events: list[CallEvent] = []
        self.jobs: list[_ClientJob] = []
        self.returned = False  # and the client knows
        self._changed = changed

    def add(self, event: CallEvent) -> None:
        """Send the client an event."""
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()


class _CallServer:
    """Serves the client's calls of the functions of an object."""

    functions: Any  # set before the client knows the address

    def __init__(self, lines: _Lines) -> None:
        self._lines = lines
        self._changed = lines.changed
        self._calls: dict[str, _Call] = {}
        self._left = Event()

    def serve_to_the_end(self) -> None:
        """Wait until the client leaves, which must have come within some time."""
        if self._left.wait(_FIRST_SECONDS) or self._calls:
            self._left.wait()

    def serve(self, channel: Channel) -> None:
        """Answer one request."""
        message = channel.receive()
        if isinstance(message, TaskProgress):
            with self._changed:
                channel.send(pickle.dumps(self._calls[message.call].jobs[message.job].note_task(message.ended)))
            return
        channel.send(pickle.dumps(self._answer(message)))
        if message.name == "leave":
            self._left.set()

    def _answer(self, request: Request) -> Reply:
        with self._changed:
            call = self._calls.get(request.call)
            if call is None:
                self._forget()
                call = self._calls[request.call] = _Call(request.call, self._changed)
                Thread(target=self._run, args=(call, request), daemon=True).start()
            for end in request.ended:
                call.jobs[end.number].end(end.rows, end.error)

            def happened() -> bool:
                return len(call.events) > request.seen

            self._changed.wait_for(lambda: happened() or self._lines.after(request.shown)[0], request.seconds)
            self._changed.wait_for(happened, min(_OUTPUT_SECONDS, request.seconds))
            call.returned = bool(call.events) and isinstance(call.events[-1], Outcome)
            return Reply(tuple(call.events[request.seen :]), *self._lines.after(request.shown))

    def _forget(self) -> None:
        """Drop old calls that have returned: their requests are not repeated any more."""
        returned = [name for name, call in self._calls.items() if call.returned]
        for name in returned[:-_KEPT_CALLS]:
            del self._calls[name]

    def _run(self, call: _Call, request: Request) -> None:
        _current.call = call
        try:
            function = getattr(self.functions, request.name)
            outcome = Outcome(cloudpickle.dumps(function(*pickle.loads(request.arguments))), failed=False)
        except BaseException as error:
            outcome = Outcome(cloudpickle.dumps(error), failed=True)
        call.add(outcome)


class _DriverPart:
    """What the client may call."""

    def __init__(self, backend: Backend, config: ClusterConfig, name: str) -> None:
        self._cluster = Cluster._on_backend(backend, config, name)
        self._batches: StreamedBatches | None = None

    def start(self) -> None:
        """Bring all nodes up."""
        self._cluster._start()

    def feed(self, request: FeedRequest) -> None:
        """Feed; the request's DataFrames are names of the client's."""
        self._cluster._feed(request)

    def join(self, timeout: float | None) -> Results:
        """Wait for the programs."""
        return self._cluster.join(timeout)

    def close(self) -> None:
        """End all nodes, whose programs have returned."""
        self._cluster._close()

    def abort(self) -> None:
        """End all nodes at once."""
        self._cluster._abort()

    def targets(self, seconds: float) -> tuple[tuple[NodeEndpoint, ...], Credentials]:
        """Return where the nodes answer inference, once all do."""
        return self._cluster._targets(seconds)

    def open_stream(self, request: FeedRequest) -> None:
        """Begin the feed of a stream; the calls that follow are those of its `StreamedBatches`."""
        self._batches = self._cluster._open_stream(request)

    def drop_stream(self) -> None:
        """End a stream that was never fed."""
        self._cluster._drop_stream()

    def feed_batch(self, frame: Any, batch: int) -> None:
        """Feed a micro-batch."""
        assert self._batches is not None
        self._batches.function()(frame, batch)

    def stop_stream(self) -> None:
        """Wait until the current micro-batch is fed."""
        assert self._batches is not None
        self._batches.stop()

    def end_stream(self) -> None:
        """Wait until the programs are done with the stream."""
        assert self._batches is not None
        self._batches.end()

    def see_stream(self) -> tuple[bool, int, BaseException | None]:
        """Return whether the stream is over, the last micro-batch that is acknowledged, and the error."""
        assert self._batches is not None
        return self._batches.is_over, self._batches.acknowledged, self._batches.error

    def see(self) -> dict[str, Any]:
        """Return the members of the cluster that the client may look at, and its table for notebooks."""
        cluster = self._cluster
        return {
            **{name: getattr(cluster, name) for name in _SEEN},
            "metrics": cluster.metrics(),
            "html": cluster._repr_html_(),
            "text": repr(cluster),
        }

    def report(self) -> str:
        """Return the page of a report."""
        return report_html(self._cluster._run.metrics)

    def leave(self) -> None:
        """Note that the client needs nothing more."""


# ---- jobs


class _ClientJob:
    """A Spark job that the client runs for a call."""

    def __init__(self, wanted: RunJob, call: _Call, on_end: Callable[[], None]) -> None:
        self.ended = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.cancelled = ""  # by the client with its call alone
        self._begun = self._done = 0  # tasks
        self._unwanted = False
        self._number = wanted.number
        self._call = call
        self._on_end = on_end
        self._over = Event()
        call.jobs.append(self)
        call.add(wanted)

    def end(self, rows: list[Any], error: str | None) -> None:
        """Note its end, which several requests may report."""
        if not self.ended:
            self.result = rows
            self.error = None if error is None else RuntimeError(error)
            self.ended = True
            self._over.set()
            self._on_end()

    def note_task(self, ended: bool) -> bool:
        """Note that a task has begun or ended; return whether the job is still wanted."""
        self._done += ended
        self._begun += not ended
        return not self._unwanted

    def tasks(self) -> tuple[int, int, int]:
        """Return how many tasks are done, how many are running, and how many have begun."""
        return self._done, max(0, self._begun - self._done), self._begun

    def cancel(self) -> None:
        """Have the client cancel it, or the next of its tasks end it."""
        if not self.ended:
            self._unwanted = True
            self._call.add(CancelJob(self._number))

    def wait(self, seconds: float) -> None:
        """Wait at most so many seconds for its end."""
        self._over.wait(seconds)


class _ClientBackend(TaskBackend):
    """The client's Spark application: jobs belong to the call in whose thread they are started."""

    def __init__(self, remote: RemoteDriver, host: str, plan: DriverPlan) -> None:
        super().__init__(host, plan.hadoop, plan.tls)
        self._remote = remote  # of this driver, for the tasks of jobs

    def place(self, plan: LaunchPlan, data: Any, on_end: Callable[[], None]) -> Stage:
        """Have the client start the barrier stage that launches the nodes."""
        assert data is None
        call, function = _current.call, cloudpickle.dumps(partial(launch_node, plan))
        nodes, gpus = len(plan.numbers), plan.config.gpus_per_node
        wanted = RunJob(len(call.jobs), function, PROBLEM_SCHEMA, "", nodes, barrier=True, gpus=gpus)
        return LaunchStage(_ClientJob(wanted, call, on_end), plan, feeds=False)

    def submit(
        self,
        function: PartitionFunction,
        data: Any,
        description: str,  # noqa: ARG002
        on_end: Callable[[], None],
        chosen: Callable[[int], bool] | None = None,
    ) -> Job:
        """Have the client run a job on a DataFrame of its own."""
        assert isinstance(data, RemoteFrame)
        call = _current.call
        task = _Task(self._remote, call.name, len(call.jobs), function, chosen)
        code = cloudpickle.dumps(partial(run_in_task, task))
        return _ClientJob(RunJob(len(call.jobs), code, function.schema, data.name), call, on_end)


@dataclass(frozen=True)
class _Task:
    """What a task of a client's job does: nothing, if it is not chosen; it ends a job that is not wanted."""

    driver: RemoteDriver
    call: str
    job: int
    function: PartitionFunction
    chosen: Callable[[int], bool] | None  # by the number of the partition

    @property
    def schema(self) -> str:
        """The rows that it returns."""
        return self.function.schema

    def __call__(self, partition: int, attempt: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Apply the function to a partition."""
        if self.chosen is None or self.chosen(partition):
            if not pickle.loads(self.driver.ask(TaskProgress(self.call, self.job, ended=False))):
                raise RuntimeError("this job is not wanted any more")  # so that Spark ends all its tasks
            yield from self.function(partition, attempt, batches)
            self.driver.ask(TaskProgress(self.call, self.job, ended=True))
        for _ in batches:  # Spark reuses a worker only if it has read its input to the end
            pass

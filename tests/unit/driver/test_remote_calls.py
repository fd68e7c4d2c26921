"""Calls of a driver that runs in a Spark task: over real sockets, with jobs that threads of this process run."""

import io
import logging
import pickle
import threading
import time
from types import SimpleNamespace

import pytest

from tensorflowonspark import transport
from tensorflowonspark.driver.connect import remote_calls
from tensorflowonspark.driver.connect.driver_task import _CallServer, _ClientBackend, _Lines
from tensorflowonspark.driver.connect.remote_calls import DriverLost, Output, RemoteDriver, RemoteFrame, Request


class Frame:
    """In place of a DataFrame: partitions of batches, and the rows of a function of them."""

    columns = ("id",)

    def __init__(self, session, partitions, function=None):
        self.session, self.partitions, self.function = session, partitions, function

    def mapInArrow(self, function, schema, barrier=False):  # noqa: N802 - pyspark's name
        return Frame(self.session, self.partitions, function)

    def collect(self):
        tag = getattr(self.session.tags, "own", None)
        rows = []
        for partition in self.partitions:
            if tag in self.session.interrupted:
                raise RuntimeError("[OPERATION_CANCELED]")
            rows += [SimpleNamespace(**row) for batch in self.function(iter(partition)) for row in batch.to_pylist()]
        return rows


class Session:
    """In place of a session of Spark Connect."""

    def __init__(self):
        self.tags, self.interrupted = threading.local(), set()

    def range(self, start, end, step, partitions):
        return Frame(self, [[] for _ in range(partitions)])

    def addTag(self, tag):  # noqa: N802 - pyspark's name
        self.tags.own = tag

    def interruptTag(self, tag):  # noqa: N802 - pyspark's name
        self.interrupted.add(tag)


@pytest.fixture
def driver(monkeypatch):
    """Return a function that serves the functions of an object; it returns the client's end and the output's lines."""
    servers = []
    monkeypatch.setattr(remote_calls, "map_in_arrow", lambda frame, *args, **kwargs: frame.mapInArrow(*args, **kwargs))

    def serve(make):
        lines = _Lines()
        calls = _CallServer(lines)
        credentials = transport.new_credentials()
        server = transport.Server(("127.0.0.1", 0), credentials, on_channel=calls.serve)
        servers.append(server)
        remote = RemoteDriver(("127.0.0.1", server.port), credentials)
        calls.functions = make(_ClientBackend(remote, "127.0.0.1", SimpleNamespace(hadoop={}, tls=False)))
        return remote, lines, calls

    yield serve
    for each in servers:
        each.close()


class Counting:
    """A function of partitions, as `PartitionFunction`."""

    schema = "count int"

    def __call__(self, partition, attempt, batches):
        import pyarrow as pa

        yield pa.RecordBatch.from_pydict({"count": [len(list(batches))]})


@pytest.fixture
def in_a_task(monkeypatch):
    """Give the functions of tasks the numbers of their partitions."""
    from tensorflowonspark.driver.spark import jobs

    count = iter(range(100))
    monkeypatch.setattr(
        jobs, "run_in_task", run_numbered := lambda function, batches: function(next(count), 0, batches)
    )
    monkeypatch.setattr("tensorflowonspark.driver.connect.driver_task.run_in_task", run_numbered)


def test_a_call_returns_or_raises_what_the_function_does(driver):
    class Functions:
        def add(self, a, b):
            return a + b

        def fail(self):
            raise LookupError("on purpose")

    remote, _, _ = driver(lambda backend: Functions())
    assert remote.call(Session(), "add", 1, b := 2) == 1 + b
    with pytest.raises(LookupError, match="on purpose"):
        remote.call(Session(), "fail")


def test_the_client_runs_the_jobs_of_a_call_on_its_own_frames(driver, in_a_task):
    class Functions:
        def __init__(self, backend):
            self.backend = backend

        def count(self, frame, chosen):
            ended = threading.Event()
            job = self.backend.submit(Counting(), frame, "", ended.set, chosen)
            assert ended.wait(30)
            if job.error:
                raise job.error
            return [row.count for row in job.result], job.tasks()

    remote, _, _ = driver(Functions)
    session = Session()
    frames = {"some": Frame(session, [["a", "b"], [], ["c"]])}
    assert remote.call(session, "count", RemoteFrame("some"), None, frames=frames) == ([2, 0, 1], (3, 0, 3))
    with pytest.raises(RuntimeError, match="other"):
        remote.call(session, "count", RemoteFrame("other"), None, frames=frames)


def test_a_job_that_is_cancelled_is_ended_by_its_next_task(driver, in_a_task):
    begun = threading.Event()

    class Slow(list):
        def __iter__(self):
            begun.set()
            time.sleep(0.05)
            return super().__iter__()

    class Functions:
        def __init__(self, backend):
            self.backend = backend

        def cancel(self, frame):
            ended = threading.Event()
            job = self.backend.submit(Counting(), frame, "", ended.set)
            assert begun.wait(30)
            job.cancel()
            assert ended.wait(30)
            return job.tasks()

    remote, _, _ = driver(Functions)
    session = Session()
    done, _, begun_tasks = remote.call(
        session, "cancel", RemoteFrame("all"), frames={"all": Frame(session, [Slow()] * 500)}
    )
    assert done < 500
    assert begun_tasks <= 500


def test_a_request_that_spark_repeats_begins_a_call_once_and_loses_no_event(driver):
    class Functions:
        count = 0

        def add(self):
            self.count += 1
            return self.count

    remote, _, _ = driver(lambda backend: Functions())
    request = Request("one", "add", pickle.dumps(()), seconds=10.0)
    replies = [pickle.loads(remote.ask(request)) for _ in range(3)]
    assert replies[1:] == replies[:1] * 2
    assert pickle.loads(replies[0].events[0].value) == 1


def test_lines_of_output_are_shown_once_in_order_and_as_the_program_logs(driver, caplog, monkeypatch):
    class Functions:
        def write(self, text):
            lines.write(text)

    remote, lines, _ = driver(lambda backend: Functions())
    stream = io.StringIO()
    output = Output(stream)
    logger = logging.getLogger("tensorflowonspark.nodes")
    monkeypatch.setattr(logger, "hasHandlers", lambda: False)
    for text in ("[worker:0] a\n[work", "er:0] b\n", "[worker:1] c\n"):
        remote.call(Session(), "write", text, output=output)
    remote.call(Session(), "write", "", output=output)
    output.show(("[worker:0] b\n", "[worker:1] c\n"), 1)  # a reply that came late
    assert stream.getvalue() == "[worker:0] a\n[worker:0] b\n[worker:1] c\n"
    monkeypatch.undo()
    caplog.set_level("INFO", logger.name)
    output.show(("[worker:0] WARNING: d\n",), 3)
    assert [record.getMessage() for record in caplog.records] == ["[worker:0] WARNING: d"]


def test_a_driver_that_is_gone_is_an_error(driver):
    remote, _, _ = driver(lambda backend: None)
    gone = RemoteDriver(("127.0.0.1", 1), remote._credentials)
    with pytest.raises(DriverLost, match="can't be reached"):
        gone.call(Session(), "add")

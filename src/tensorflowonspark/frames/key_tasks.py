"""The work of a task of `fit_each`: rows in the order of their keys become a row of results for each key."""

import functools
import io
import os
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import send_handle
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tensorflowonspark import processes, storage
from tensorflowonspark.columns import integers
from tensorflowonspark.errors import RequirementError, StartError
from tensorflowonspark.frames.key_server import Outcome
from tensorflowonspark.ml.worker_errors import short_errors
from tensorflowonspark.supervisor.exit_status import explain, out_of_memory_kills
from tensorflowonspark.supervisor.supervisor_client import supervisor_environment

_DIGEST = b"tfos_rows"  # in the metadata of a key's file: a hash of the rows that it was trained on


@dataclass(frozen=True)
class KeyWork:
    """What a task does with the rows of each key."""

    keys: tuple[str, ...]  # the columns
    single: bool  # whether the function takes the value of one column, or a tuple
    schema: pa.Schema  # of the results
    program: bytes = field(repr=False)  # the user's functions
    keys_of_a_process: int
    seed: int
    timeout: float | None
    output: str  # a directory; empty for none
    settings: Mapping[str, str] = field(repr=False)  # Hadoop's


# ---- processes


@functools.cache
def _server() -> Connection:
    """Return the pipe of this worker's process that has imported Keras; it ends with the worker."""
    _, pipe = processes.start("tensorflowonspark.frames.key_server", supervisor_environment(initial=True))
    pipe.send(os.getpid())
    if problem := pipe.recv():
        raise RequirementError(f"on {socket.gethostname()} no process can be forked that has imported Keras: {problem}")
    return pipe


class KeyProcess:
    """The process that trains the next key, or some keys; another one takes its place when it has ended."""

    def __init__(self, program: bytes, keys: int, timeout: float | None) -> None:
        self._program = program
        self._keys = keys
        self._timeout = timeout
        self._left = 0  # keys that it still takes
        self._pid = 0
        self._connection: Connection | None = None

    def train(self, *request: Any) -> tuple[Outcome, float]:
        """Return what the function gives for a key, or why there is nothing, and the seconds that it took."""
        kills = out_of_memory_kills()
        connection = self._connection or self._start()
        begin = time.monotonic()
        outcome: Outcome | None = None
        late = False
        try:
            connection.send(request)
            late = not wait([connection, _server()], self._timeout)
            if not late:
                outcome = connection.recv()
        except (EOFError, OSError):
            pass
        seconds = time.monotonic() - begin
        self._left -= 1
        code = self.end(kill=outcome is None) if outcome is None or not self._left else 0
        if outcome is None:
            _, reason, advice = explain(code, out_of_memory_kills() - kills)
            late_text = f"TimeoutError: it had not ended after {self._timeout:g} s (timeout)" if late else ""
            outcome = None, {}, late_text or f"{reason}; {advice}"
        return outcome, seconds

    def _start(self) -> Connection:
        ours, theirs = socket.socketpair()
        connection = Connection(ours.detach())
        try:
            with theirs:
                send_handle(_server(), theirs.fileno(), None)
            self._pid = connection.recv()
            connection.send((self._program, self._keys))
        except (EOFError, OSError) as error:
            _server.cache_clear()
            raise StartError(f"on {socket.gethostname()} the process of a key has not started: {error!r}") from error
        self._connection, self._left = connection, self._keys
        return connection

    def end(self, *, kill: bool = False) -> int:
        """End the process if there is one, at once or by itself; return its exit code."""
        if self._connection is None:
            return 0
        if kill:
            processes.kill_group(self._pid)
        self._connection.close()
        self._connection = None
        try:
            code: int = _server().recv()
        except (EOFError, OSError):
            _server.cache_clear()
            return processes.UNKNOWN_EXIT
        return code


# ---- keys


@short_errors
def train_keys(work: KeyWork, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the results of each key of a partition (runs in Spark's Python workers)."""
    storage.use(work.settings)
    process = KeyProcess(work.program, work.keys_of_a_process, work.timeout)
    try:
        for identity, rows in rows_of_keys(work.keys, batches):
            yield _result(work, process, sha256(repr(identity).encode()).hexdigest(), rows)
    finally:
        process.end(kill=True)


def rows_of_keys(keys: tuple[str, ...], batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[Any, pa.Table]]:
    """Yield the rows of each key, which follow each other, after the key in a form that is equal in every process.

    Examples
    --------
    >>> batch = pa.record_batch({"k": ["a", "a", None], "x": [1, 2, 3]})
    >>> [(key, rows.column("x").to_pylist()) for key, rows in rows_of_keys(("k",), [batch, batch.slice(2)])]
    [(('a',), [1, 2]), ((None,), [3, 3])]
    """
    identity: Any = None
    parts: list[pa.RecordBatch] = []
    for batch in batches:
        columns = [integers(batch.column(name)) for name in keys]
        ends = np.unique(np.concatenate([pc.run_end_encode(each).run_ends for each in columns])).tolist()
        for start, end in zip([0, *ends], ends, strict=False):
            found = tuple(each[start].as_py() for each in columns)
            if parts and found != identity:
                yield identity, pa.Table.from_batches(parts)
                parts = []
            identity = found
            parts.append(batch.slice(start, end - start))
    if parts:
        yield identity, pa.Table.from_batches(parts)


def _result(work: KeyWork, process: KeyProcess, name: str, rows: pa.Table) -> pa.RecordBatch:
    """Return the results of a key, which an earlier task may have trained on the same rows."""
    sent = _equal_bytes(rows.drop_columns(list(work.keys)))
    digest = sha256(sent).hexdigest()
    path = f"{work.output.rstrip('/')}/{name[:32]}.parquet"
    if work.output and (stored := _stored(path, digest)):
        return pa.RecordBatch.from_pylist(stored, schema=work.schema)
    own = rows.select(list(work.keys)).slice(0, 1).to_pylist()[0]
    key = own[work.keys[0]] if work.single else tuple(own.values())
    seed = int(sha256(f"{work.seed} {name}".encode()).hexdigest()[:8], 16)
    (model, metrics, error), seconds = process.train(seed, key, sent)
    result = {"rows": len(rows), "seconds": seconds, "metrics": list(metrics.items()), "model": model, "error": error}
    batch = pa.RecordBatch.from_pylist([{**own, **result}], schema=work.schema)
    if work.output and error is None:
        table = pa.Table.from_batches([batch]).replace_schema_metadata({_DIGEST: digest})
        storage.publish(path, lambda local: pq.write_table(table, local))
    return batch


def _stored(path: str, digest: str) -> list[dict[str, Any]]:
    """Return the results in a file; none if there is no file, or if they are of other rows."""
    files, within = storage.file_system(path)
    try:
        table = pq.read_table(io.BytesIO(files.cat_file(within)))
    except FileNotFoundError:
        return []
    found: list[dict[str, Any]] = table.to_pylist()
    return found if table.schema.metadata.get(_DIGEST) == digest.encode() else []


def _equal_bytes(rows: pa.Table) -> bytes:
    """Return rows as an Arrow stream of one batch, which has the same bytes for the same rows."""
    taken = rows.take(pa.array(np.arange(len(rows)))).combine_chunks()  # into memory of its own, without an offset
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, taken.schema) as writer:
        writer.write_table(taken)
    data: bytes = sink.getvalue().to_pybytes()
    return data

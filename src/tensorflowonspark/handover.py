"""Rows handed to another process on the same host without being sent: in a nameless file that both have open.

A row that goes through a socket is copied four times: into the kernel, out of it, into one piece, and to where it is
kept. Here the sender writes Arrow's stream format into a file, on disk or in memory, that no directory knows; the
receiver opens it through the sender's process (``/proc/<pid>/fd``, which Linux allows to the same user), and maps it.
That is one copy. The file is gone with the last process that has it open or mapped, whatever it dies of.
"""

import mmap
import os
import resource
import stat
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

__all__ = ["PIECE_BYTES", "Piece", "PieceWriter", "allow_many_files", "can_hand_over", "map_file", "open_piece"]

# Enough that a word between the processes costs nothing beside it, and little enough to be counted against a bound.
PIECE_BYTES = 32 << 20


@dataclass(frozen=True)
class Piece:
    """Where to find a file that a process has open; device and inode tell whether it is the one that was meant."""

    pid: int
    descriptor: int
    device: int
    inode: int
    size: int


def can_hand_over() -> bool:
    """Whether this system has what it takes: Linux does."""
    return hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir()


class PieceWriter:
    """Writes batches into a nameless file.

    Parameters
    ----------
    schema : pyarrow.Schema
        Of the batches.
    directory : str or None
        On whose disk it is; None for one in memory.

    Examples
    --------
    >>> writer = PieceWriter(pa.schema({"x": pa.int64()}), None)
    >>> writer.write(pa.record_batch({"x": [1, 2]}))
    >>> [batch.to_pydict() for batch in open_piece(writer.finish())]
    [{'x': [1, 2]}]
    >>> writer.close()
    """

    def __init__(self, schema: pa.Schema, directory: str | None) -> None:
        self._file: IO[bytes] = (
            os.fdopen(os.memfd_create("tensorflowonspark"), "w+b")
            if directory is None
            else tempfile.TemporaryFile(dir=directory or None)  # noqa: SIM115 - closed when it was handed over
        )
        self._writer = pa.ipc.new_stream(pa.PythonFile(self._file, "w"), schema)
        self.bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a batch."""
        self._writer.write_batch(batch)
        self.bytes += batch.nbytes

    def finish(self) -> Piece:
        """Return what another process needs to open it; it must stay open here until then."""
        self._writer.close()
        self._file.flush()
        found = os.fstat(self._file.fileno())
        return Piece(os.getpid(), self._file.fileno(), found.st_dev, found.st_ino, found.st_size)

    def close(self) -> None:
        """Let go of it; a process that has mapped it keeps it."""
        self._file.close()


def open_piece(piece: Piece) -> list[pa.RecordBatch]:
    """Return the batches of another process's file, mapped into memory.

    Raises
    ------
    OSError
        If it can't be opened, as where the other process is in another container, or is none that was handed over.
    """
    # Without waiting, as the open of a pipe would.
    descriptor = os.open(f"/proc/{int(piece.pid)}/fd/{int(piece.descriptor)}", os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if (found.st_dev, found.st_ino, found.st_size) != (piece.device, piece.inode, piece.size):
            raise FileNotFoundError(f"process {piece.pid} is another one here")
        if not stat.S_ISREG(found.st_mode) or found.st_nlink:
            raise FileNotFoundError(f"file {piece.descriptor} of process {piece.pid} is not one without a name")
        mapped = map_file(file)
    return list(pa.ipc.open_stream(pa.py_buffer(mapped)))


def map_file(file: IO[bytes]) -> mmap.mmap:
    """Return a file's bytes, mapped; from Python 3.13 on the mapping keeps no descriptor open."""
    more: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ, **more)


def allow_many_files() -> None:
    """Let this process have as many files open as the system allows: a mapped file counts, up to Python 3.12."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

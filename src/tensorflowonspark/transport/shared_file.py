"""Unnamed files that pass rows to another process on the same host.

A row that is sent through a socket is copied four times: into the kernel, out of it, into contiguous memory, and into
the cache. With a file it is copied once: the sender writes Arrow's stream format to an unnamed file, on disk or in
memory, and the receiver opens the file through the sender's process (``/proc/<pid>/fd``, which Linux allows to the same
user) and maps it. The kernel frees the file with the last process that has it open or mapped, however that ends.
"""

from __future__ import annotations

import errno
import os
import resource
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tensorflowonspark.errors import FeedError

if TYPE_CHECKING:
    import pyarrow as pa

# Of one file: large enough that its message costs nothing in comparison, and small enough for cache limits.
FILE_BYTES = 32 << 20


@dataclass(frozen=True)
class FileRef:
    """An open file of a process; device and inode identify it."""

    pid: int
    descriptor: int
    device: int
    inode: int
    size: int


def can_share_files() -> bool:
    """Return whether this system supports shared files: Linux does."""
    return hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir()


class SharedFileWriter:
    """Writes batches to an unnamed file.

    It is on the disk of the directory; in memory if that is None.

    Examples
    --------
    >>> import pyarrow as pa
    >>> writer = SharedFileWriter(pa.schema({"x": pa.int64()}), None)
    >>> writer.write(pa.record_batch({"x": [1, 2]}))
    >>> [batch.to_pydict() for batch in open_shared(writer.finish())]
    [{'x': [1, 2]}]
    >>> writer.close()
    """

    def __init__(self, schema: pa.Schema, directory: str | None) -> None:
        import pyarrow as pa

        self._place = "memory" if directory is None else directory or tempfile.gettempdir()
        with disk_errors(self._place):
            self._file: IO[bytes] = (
                os.fdopen(os.memfd_create("tensorflowonspark"), "w+b")
                if directory is None
                else tempfile.TemporaryFile(dir=directory or None)  # noqa: SIM115 - closed when the receiver has opened it
            )
            self._writer = pa.ipc.new_stream(pa.PythonFile(self._file, "w"), schema)
        self.bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a batch.

        If the disk or the memory is full, it raises `FeedError`.
        """
        with disk_errors(self._place):
            self._writer.write_batch(batch)
        self.bytes += batch.nbytes

    def finish(self) -> FileRef:
        """Return the reference for another process; the file must stay open here until that has opened it."""
        with disk_errors(self._place):
            self._writer.close()
            self._file.flush()
        found = os.fstat(self._file.fileno())
        return FileRef(os.getpid(), self._file.fileno(), found.st_dev, found.st_ino, found.st_size)

    def close(self) -> None:
        """Close the file; it stays mapped in other processes."""
        with suppress(OSError):  # the file is closed nevertheless, and its contents are no longer needed
            self._file.close()


def open_shared(piece: FileRef) -> list[pa.RecordBatch]:
    """Return the batches of another process's file, mapped into memory.

    A file that can't be opened, as in another container, or is not the referenced one, is an `OSError`.
    """
    import pyarrow as pa

    # O_NONBLOCK: to open a pipe would wait.
    descriptor = os.open(f"/proc/{int(piece.pid)}/fd/{int(piece.descriptor)}", os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if (found.st_dev, found.st_ino, found.st_size) != (piece.device, piece.inode, piece.size):
            raise FileNotFoundError(f"process {piece.pid} is a different one here")
        if not stat.S_ISREG(found.st_mode) or found.st_nlink:
            raise FileNotFoundError(f"file {piece.descriptor} of process {piece.pid} is not an unnamed file")
        mapped = map_file(file)
    return list(pa.ipc.open_stream(mapped))


def map_file(file: IO[bytes]) -> pa.Buffer:
    """Return the mapped contents of a file; the mapping needs no file descriptor.

    If the kernel refuses another mapping, it raises `FeedError`.
    """
    import pyarrow as pa

    try:
        with pa.memory_map(f"/proc/self/fd/{file.fileno()}") as mapped:
            return mapped.read_buffer()
    except OSError as error:
        if os.strerror(errno.ENOMEM) in str(error):  # Arrow's own errors have no number
            raise FeedError(
                "the kernel maps no more files for this process (vm.max_map_count, or ulimit -v): feed fewer "
                "partitions (df.coalesce), or use more workers"
            ) from error
        raise


@contextmanager
def disk_errors(directory: str) -> Iterator[None]:
    """Convert a failure to write rows to a directory to a `FeedError` with the directory and the remedy.

    Examples
    --------
    >>> with disk_errors("/scratch"):  # doctest: +ELLIPSIS
    ...     raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    Traceback (most recent call last):
    tensorflowonspark.errors.FeedError: rows can't be written to /scratch on ...: No space left on device; ...
    """
    try:
        yield
    except OSError as error:
        raise FeedError(
            f"rows can't be written to {directory} on {os.uname().nodename}: {error.strerror or error}; "
            f"{_ADVICE.get(error.errno or 0, _FULL)}"
        ) from error


_FULL = "free some of the disk, set spark.local.dir to another, feed fewer columns, or use cache='memory' or cache=None"
_ADVICE = {
    errno.EMFILE: "allow this process more open files (ulimit -n)",
    errno.ENFILE: "the host has too many open files (fs.file-max)",
    errno.EFBIG: "allow this process larger files (ulimit -f)",
    errno.EROFS: "set spark.local.dir to a disk that can be written",
    errno.EACCES: "set spark.local.dir to a directory that the executors may write",
    errno.ENOENT: "its directory is gone: set spark.local.dir to one that is not cleaned up",
}


def allow_files(more: int) -> bool:
    """Raise the limit of open files (and connections) for `more` than are open; return whether the system allows it."""
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        needed = len(list(Path("/proc/self/fd").iterdir())) + more
    except OSError:  # the limit is reached already
        needed = allowed + more
    if allowed == resource.RLIM_INFINITY or needed <= allowed:
        return True
    if most != resource.RLIM_INFINITY and needed > most:
        return False
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, most))
    return True


def allow_many_files() -> None:
    """Raise the limit of open files to the system's maximum: each connection of a peer is one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

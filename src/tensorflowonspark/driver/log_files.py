"""Files of a cluster's output in a directory of any file system: one series for each node, and one for the driver.

A file that has become large is followed by one with the next number, and the oldest is removed; none is renamed. On
file systems other than the local one the files are written locally and copied there: many of them can't append to a
file, so that the last file of a node is copied as a whole again when it has grown.
"""

import logging
import os
import re
import shutil
import sys
import tempfile
import time
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from logging.handlers import RotatingFileHandler
from pathlib import Path
from threading import Event, Thread

from tensorflowonspark import storage
from tensorflowonspark.driver.log_entries import LogEntry
from tensorflowonspark.errors import SpecError
from tensorflowonspark.secrecy import without_secrets
from tensorflowonspark.terminal import CONSOLE, Console

__all__ = ["DRIVER", "LogFiles", "check_log_dir", "is_remote_directory"]

_log = logging.getLogger(__name__)
_WRITER = Console()  # apart from the terminal, whose reader may have stopped
os.register_at_fork(after_in_child=_WRITER._reset)
DRIVER = "driver"  # in the place of a node's name, for what happens to the cluster as a whole
_FILE_BYTES = 10 << 20
_FILES = 5  # of each node
_NAME = re.compile(r"(.+?)(?:\.(\d+))?\.log")
_LAST_SLASHES = re.compile(r"(?<![:/])/+$")
_COPY_SECONDS = 5.0
_COPY_SHARE = 10  # times the duration of a copy, until the next one begins
_END_SECONDS = 30.0  # for the last copy


def _file_stem(node: str) -> str:
    return node.replace(":", "-")


def _file_name(name: str, number: int) -> str:
    return f"{name}.log" if number == 1 else f"{name}.{number}.log"


def _numbers(names: Sequence[str]) -> dict[str, int]:
    """Return the highest number of the files of each node."""
    found: dict[str, int] = {}
    for match in filter(None, map(_NAME.fullmatch, names)):
        found[match[1]] = max(found.get(match[1], 0), int(match[2] or 1))
    return found


class _NodeFile(RotatingFileHandler):
    """The files of one node: it continues the last one, and begins the next when that is large."""

    def __init__(self, folder: Path, name: str, number: int) -> None:
        self._folder, self._node, self._number = folder, name, number
        path = folder / _file_name(name, number)
        super().__init__(path, maxBytes=_FILE_BYTES, encoding="utf-8", errors="backslashreplace", delay=True)

    @property
    def has_text(self) -> bool:
        path = Path(self.baseFilename)
        return path.exists() and path.stat().st_size > 0

    def doRollover(self) -> None:  # noqa: N802 - the name of Python's method
        self.close()
        self._number += 1
        self.baseFilename = str(self._folder / _file_name(self._node, self._number))
        if self._number > _FILES:
            (self._folder / _file_name(self._node, self._number - _FILES)).unlink(missing_ok=True)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802, ARG002 - the name of Python's method
        error = sys.exc_info()[1]
        assert error is not None
        raise error


class LogFiles:
    """Writes the output of each node to files of its own, in a thread.

    Parameters
    ----------
    directory : str
        A local path or a URL, which is created if there is none.
    as_json : bool
        Whether each line is an object of JSON.
    hadoop : callable, optional
        Returns the settings by which a URL is reached.

    Raises
    ------
    SpecError
        If the directory can't be written to.
    """

    def __init__(
        self, directory: str, *, as_json: bool = False, hadoop: Callable[[], Mapping[str, str]] | None = None
    ) -> None:
        self._remote = is_remote_directory(directory)
        if self._remote and hadoop is not None:
            storage.use({**storage.settings(), **hadoop()})
        self.directory = check_log_dir(directory)
        self._as_json = as_json
        self._files: dict[str, _NodeFile] = {}
        self._begun: set[str] = set()  # nodes whose process has written to its file
        self._uploads: _Uploads | None = None
        self._broken = False
        self._closed = False

    def write(self, node: str, entries: Sequence[LogEntry]) -> None:
        """Write entries to the file of a node, or of `DRIVER`, which others may read: without secrets."""
        if self._closed:  # a node that ends late would open files again
            return
        if node == DRIVER:
            entries = [replace(entry, message=without_secrets(entry.message)) for entry in entries]
        size = sum(len(entry.message) for entry in entries)
        _WRITER.put(partial(self._write, _file_stem(node), entries), lambda: iter(()), len(entries), size)

    def begin(self, node: str | None = None) -> None:
        """Note that a node starts again, or that all do: what it writes from now on is of a new process."""
        act = self._begun.clear if node is None else partial(self._begun.discard, _file_stem(node))
        _WRITER.put(act, lambda: iter(()))

    def drain(self) -> None:
        """Wait until all is written locally."""
        _WRITER.drain()

    def close(self) -> None:
        """Wait until all is written, and copied where it belongs."""
        self._closed = True
        self.drain()
        uploads, self._uploads = self._uploads, None
        self._files.clear()
        if uploads is not None:
            uploads.close()

    def _write(self, name: str, entries: Sequence[LogEntry]) -> None:
        try:
            file = self._files.get(name) or self._open(name)
            lines = [self._line(name, entry) for entry in entries]
            if name not in self._begun and file.has_text and name != DRIVER:
                first = entries[0]
                begin = LogEntry(first.time, logging.INFO, "a new start", first.node, first.host, {"event": "start"})
                lines.insert(0, self._line(name, begin))
            self._begun.add(name)
            try:
                file.handle(logging.makeLogRecord({"msg": "\n".join(lines)}))
            finally:
                file.close()  # until the next lines: a thousand nodes would need as many open files
        except OSError as error:
            if not self._broken:
                self._broken = True
                text = "the nodes' output can't be written to %s (%s): the training goes on without"
                CONSOLE.log(_log, logging.WARNING, text, error.filename or self.directory, error)

    def _line(self, name: str, entry: LogEntry) -> str:
        if self._as_json:
            return entry.json
        traceback = entry.fields.get("traceback")
        text = f"{entry.message}\n{traceback.rstrip()}" if traceback else entry.message
        if name == DRIVER:
            return f"{entry.moment} {logging.getLevelName(entry.level)} {text}"
        return f"---- {entry.moment}: {text}" if "event" in entry.fields else text

    def _open(self, name: str) -> _NodeFile:
        if not self._remote:
            folder = Path(self.directory)
            number = _numbers([path.name for path in folder.glob(f"{name}.*")]).get(name, 1)
        else:
            if self._uploads is None:
                self._uploads = _Uploads(self.directory)
            folder, number = self._uploads.folder, 1
        self._files[name] = _NodeFile(folder, name, number)
        return self._files[name]


class _Uploads(Thread):
    """Copies the files of a local folder to a URL when they have grown, after those that are there already.

    The pause after a copy is ten times as long as the copy took, and five seconds at least.
    """

    def __init__(self, url: str) -> None:
        super().__init__(name="log-files", daemon=True)
        self.folder = Path(tempfile.mkdtemp(prefix="tfos-logs-"))
        self._removal = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self._url = url
        self._before: dict[str, int] | None = None  # the highest numbers of the files of earlier clusters
        self._copied: dict[str, int] = {}  # sizes
        self._problem: Exception | None = None  # of the last copy
        self._reported = False
        self._closed = Event()
        self.start()

    def run(self) -> None:
        pause = _COPY_SECONDS
        while not self._closed.wait(pause):
            began = time.monotonic()
            self._try_copy()
            pause = max(_COPY_SECONDS, _COPY_SHARE * (time.monotonic() - began))
        self._try_copy()

    def close(self) -> None:
        """Copy a last time and remove the local files, unless they can't be copied."""
        self._closed.set()
        self.join(_END_SECONDS)
        if self._problem is None and not self.is_alive():
            self._removal()
            return
        self._removal.detach()
        text = "the last lines of the nodes' output can't be written to %s (%s): all of it is in %s"
        CONSOLE.log(_log, logging.WARNING, text, self._url, self._problem or "no answer", self.folder)

    def _try_copy(self) -> None:
        try:
            self._copy()
            self._problem = None
        except Exception as error:  # of any file system's client
            self._problem = error
            if not self._reported and not self._closed.is_set():
                self._reported = True
                text = "the nodes' output can't be written to %s (%s): the training goes on, and this is tried again"
                CONSOLE.log(_log, logging.WARNING, text, self._url, error)

    def _copy(self) -> None:
        if self._before is None:
            files, within = storage.file_system(self._url)
            there = files.ls(within, detail=False) if files.exists(within) else []
            self._before = _numbers([path.rstrip("/").rpartition("/")[2] for path in there])
        sizes = {path.name: path.stat().st_size for path in sorted(self.folder.iterdir())}
        for name, size in sizes.items():
            if self._copied.get(name) != size:
                storage.publish(self._there(name), partial(shutil.copyfile, self.folder / name))
                self._copied[name] = size
        for name in self._copied.keys() - sizes.keys():
            storage.remove(self._there(name))
            del self._copied[name]

    def _there(self, name: str) -> str:
        """Return the URL for a local file, behind the files of earlier clusters."""
        assert self._before is not None
        ((node, number),) = _numbers([name]).items()
        return f"{self._url}/{_file_name(node, self._before.get(node, 0) + number)}"


def is_remote_directory(directory: str) -> bool:
    """Return whether a directory is on another file system than that of this machine.

    Examples
    --------
    >>> is_remote_directory("logs"), is_remote_directory("file:///logs"), is_remote_directory("s3a://bucket/logs")
    (False, False, True)
    """
    scheme, separator, _ = os.fspath(directory).partition("://")
    return bool(separator) and scheme not in ("file", "local")


def check_log_dir(directory: str) -> str:
    """Return the absolute path or the URL of a directory, which is made if there is none.

    Raises
    ------
    SpecError
        If it can't be written to.
    """
    given = os.fspath(directory)
    if not given:
        raise SpecError("log_dir='': expected a directory, or None")
    try:
        if is_remote_directory(given):
            url = _LAST_SLASHES.sub("", given)
            probe = f"{url}/.tfos-{uuid.uuid4().hex}"
            storage.publish(probe, lambda local: Path(local).touch())
            storage.remove(probe)
            return url
        path = Path(storage.file_system(given)[1] if "://" in given else given).absolute()
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except Exception as error:  # of any file system's client
        raise SpecError(f"log_dir={given!r} can't be written to ({error})") from error
    return str(path)

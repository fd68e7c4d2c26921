"""Files of a cluster's output in a directory of any file system: one series for each node, and one for the driver.

A file that has become large is followed by one with the next number, and the oldest is removed; none is renamed. For
file systems other than a local disk the files are written locally and copied there: many of them can't append to a
file, so that the last file of a node is copied as a whole again when it has grown.
"""

import logging
import os
import re
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from tensorflowonspark import storage
from tensorflowonspark.driver.log_entries import LogEntry
from tensorflowonspark.errors import SpecError
from tensorflowonspark.secrecy import without_secrets
from tensorflowonspark.terminal import CONSOLE, Writer, plain

_log = logging.getLogger(__name__)
_WRITER = Writer()  # apart from the terminal, whose reader may have stopped
os.register_at_fork(after_in_child=_WRITER._reset)
DRIVER = "driver"  # in the place of a node's name, for what happens to the cluster as a whole
_FILE_BYTES = 10 << 20
_FILES = 5  # of each node
_NAME = re.compile(r"(.+?)(?:\.(\d+))?\.log")
_LAST_SLASHES = re.compile(r"(?<![:/])/+$")
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


class LogFiles:
    """Writes the output of each node to files of its own, in a thread.

    The directory is a local path or a URL; `hadoop` returns the settings by which a URL is reached. One that can't be
    written to raises `SpecError`.
    """

    def __init__(
        self, directory: str, *, as_json: bool = False, hadoop: Callable[[], Mapping[str, str]] | None = None
    ) -> None:
        remote = is_remote_directory(directory)
        if remote and hadoop is not None:
            storage.use({**storage.settings(), **hadoop()})
        self.directory = check_log_dir(directory)
        self._copies = remote or not storage.takes_random_writes(self.directory)
        self._as_json = as_json
        self._numbers: dict[str, int] = {}  # of the files that are written to, by node
        self._begun: set[str] = set()  # nodes whose process has written to its file
        self._folder = Path(self.directory)
        self._before: dict[str, int] = {}  # the highest numbers of the files that earlier clusters have copied there
        self._sync: storage.DirectorySync | None = None
        self._broken = False
        self._closed = False
        if self._copies:
            files, within = storage.file_system(self.directory)
            there = files.ls(within, detail=False) if files.exists(within) else []
            self._before = _numbers([path.rstrip("/").rpartition("/")[2] for path in there])

    def write(self, node: str, entries: Sequence[LogEntry]) -> None:
        """Write entries to the file of a node, or of `DRIVER`, which others may read: without secrets."""
        if self._closed:  # a node that ends late would open files again
            return
        cleaned = without_secrets if node == DRIVER else plain
        entries = [replace(entry, message=cleaned(entry.message)) for entry in entries]
        size = sum(len(entry.message) for entry in entries)
        _WRITER.put(partial(self._write, _file_stem(node), entries), lines=len(entries), size=size)

    def begin(self, node: str | None = None) -> None:
        """Note that a node starts again, or that all do: what it writes from now on is of a new process."""
        act = self._begun.clear if node is None else partial(self._begun.discard, _file_stem(node))
        _WRITER.put(act)

    def drain(self) -> None:
        """Wait until all is written locally."""
        _WRITER.drain()

    def close(self) -> None:
        """Wait until all is written, and copied where it belongs."""
        self._closed = True
        self.drain()
        sync, self._sync = self._sync, None
        if sync is None:
            return
        try:
            sync.close(_END_SECONDS)
            self._removal()
        except Exception as error:  # of any file system's client
            self._removal.detach()
            text = "the last lines of the nodes' output can't be written to %s (%s): all of it is in %s"
            CONSOLE.log(_log, logging.WARNING, text, self.directory, error, self._folder)

    def _write(self, name: str, entries: Sequence[LogEntry]) -> None:
        try:
            path = self._path(name)
            size = path.stat().st_size if path.exists() else 0
            lines = [self._line(name, entry) for entry in entries]
            if name not in self._begun and size and name != DRIVER:
                first = entries[0]
                begin = LogEntry(first.time, logging.INFO, "a new start", first.node, first.host, {"event": "start"})
                lines.insert(0, self._line(name, begin))
            self._begun.add(name)
            text = "".join(f"{line}\n" for line in lines)
            if size and size + len(text) > _FILE_BYTES:
                self._numbers[name] += 1
                path = self._path(name)
                (self._folder / _file_name(name, self._numbers[name] - _FILES)).unlink(missing_ok=True)
            with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
        except OSError as error:
            self._warn(error, " without")

    def _warn(self, error: Exception, what: str) -> None:
        if not self._broken:
            self._broken = True
            place = getattr(error, "filename", None) or self.directory
            text = "the nodes' output can't be written to %s (%s): the training goes on%s"
            CONSOLE.log(_log, logging.WARNING, text, place, error, what)

    def _line(self, name: str, entry: LogEntry) -> str:
        if self._as_json:
            return entry.json
        traceback = entry.fields.get("traceback")
        text = f"{entry.message}\n{traceback.rstrip()}" if traceback else entry.message
        if name == DRIVER:
            return f"{entry.moment} {logging.getLevelName(entry.level)} {text}"
        return f"---- {entry.moment}: {text}" if "event" in entry.fields else text

    def _path(self, name: str) -> Path:
        """Return the file that a node's lines are written to: its last one; of those that are copied, a new one."""
        if self._copies and self._sync is None:
            self._folder = Path(tempfile.mkdtemp(prefix="tfos-logs-"))
            self._removal = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
            warn = partial(self._warn, what=", and this is tried again")
            self._sync = storage.DirectorySync(str(self._folder), self.directory, removes=True, on_error=warn)
        if name not in self._numbers:
            there = _numbers([path.name for path in self._folder.glob(f"{name}.*")])
            self._numbers[name] = self._before.get(name, 0) + 1 if self._copies else there.get(name, 1)
        return self._folder / _file_name(name, self._numbers[name])


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

    If it can't be written to, it raises `SpecError`.
    """
    given = os.fspath(directory)
    if not given:
        raise SpecError.of("log_dir", given, ": expected a directory, or None")
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
        raise SpecError.of("log_dir", given, f" can't be written to ({error})") from error
    return str(path)

"""A store of checkpoint directories that are written once, and are complete or absent, on any file system.

Not every file system has a rename that makes a directory visible at once (object stores copy file by file), and fsspec
does not tell which has. So there is one way for all: the files go to a place of their own, and last comes a file that
lists them with their sizes and checksums. What has no such file, or not all that it lists, is as good as not there;
what is not as it was written is passed over, with a warning.
"""

import json
import logging
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import google_crc32c

from tensorflowonspark import storage
from tensorflowonspark.errors import CheckpointError

__all__ = ["CheckpointStore", "SavedCheckpoint"]

_log = logging.getLogger(__name__)
_NAME = re.compile(r"step-\d{8,}-[0-9a-f]{8}")
_MARKER = "complete.json"
_OWN_CHECKSUM = "crc32c"  # in the marker, of all else that is in it
_READ_BYTES = 1 << 20
_ADVICE = "see that it is a directory, that you may write there, and that there is room"


@dataclass(frozen=True)
class SavedCheckpoint:
    """A complete checkpoint.

    Parameters
    ----------
    name : str
        Its directory's name.
    number : int
        How many were written before it, which is their order: steps may begin anew.
    step : int
        The step after which it was written.
    epoch : int
        How many epochs were complete by then; 0 where nobody counts them.
    files : dict
        The size of each file in bytes, by its path within the directory.
    batch : int
        How many steps were taken in the epoch that was not complete.
    feed : int
        The number of the feed that these are of.
    workers : int
        How many nodes trained, which decides what is in a step.
    checksums : dict
        The CRC-32C of each file, by its path; empty where none were written, as by earlier versions.
    """

    name: str
    number: int
    step: int
    epoch: int
    files: dict[str, int]
    batch: int = 0
    feed: int = 0
    workers: int = 0
    checksums: dict[str, int] = field(default_factory=dict)


class CheckpointStore:
    """The checkpoints in one directory, of which one process writes and any number read.

    Parameters
    ----------
    directory : str
        A path, or a URL of any file system.
    keep : int
        How many complete ones stay.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> shelf = CheckpointStore("memory://models/digits", keep=2)
    >>> with tempfile.TemporaryDirectory() as local:
    ...     _ = Path(local, "state").write_text("weights")
    ...     steps = [shelf.add(local, step).step for step in (10, 20, 30)]
    >>> [saved.step for saved in shelf.complete()]
    [20, 30]
    >>> shelf.clear()
    """

    def __init__(self, directory: str, keep: int) -> None:
        self.directory = directory.rstrip("/")
        self.keep = keep
        self._files, self._root = storage.file_system(self.directory)
        self._damaged: set[str] = set()  # the names of those that have been reported, and no longer count

    @property
    def damaged(self) -> list[str]:
        """The names of those that were found damaged."""
        return sorted(self._damaged)

    def complete(self) -> list[SavedCheckpoint]:
        """Return the complete checkpoints, the newest last."""
        with self._explained("looked for", "see that it is a directory, and that you may read it"):
            found = [saved for name in self._names() if (saved := self.find(name))]
        return sorted(found, key=lambda saved: (saved.number, saved.name))

    def latest(self) -> SavedCheckpoint | None:
        """Return the newest complete checkpoint, if there is any."""
        found = self.complete()
        return found[-1] if found else None

    def find(self, name: str) -> SavedCheckpoint | None:
        """Return the checkpoint of this name, if it is complete, and not known to be damaged."""
        if name in self._damaged:
            return None
        place = f"{self._root}/{name}"
        try:
            text = self._files.cat_file(f"{place}/{_MARKER}")
            found = self._files.find(place, detail=True)
        except FileNotFoundError:
            return None
        saved = _parsed(text)
        if saved is None:
            self.pass_over(name, f"its {_MARKER} is not what was written")
            return None
        sizes = {str(PurePosixPath(path).relative_to(place)): info["size"] for path, info in found.items()}
        wrong = [each for each, size in saved.files.items() if sizes.get(each) != size]
        if wrong and self._files.exists(f"{place}/{_MARKER}"):  # or else whoever writes is just removing it
            self.pass_over(name, f"{wrong[0]} is gone, or has another size than was written")
        return None if wrong else saved

    def pass_over(self, name: str, problem: str) -> None:
        """Warn of a damaged checkpoint, once; it does not count from now on, and the next `add` removes it."""
        if name not in self._damaged:
            self._damaged.add(name)
            _log.warning("the checkpoint %s/%s is damaged and passed over: %s", self.directory, name, problem)

    def try_writing(self) -> None:
        """Find out whether anything can be written here, before hours of training."""
        probe = f"{self._root}/.probe-{uuid.uuid4().hex}"
        with self._explained("written", _ADVICE):
            self._files.makedirs(self._root, exist_ok=True)
            self._files.pipe_file(probe, b"?")
            self._files.rm_file(probe)

    def add(self, local: str, step: int, epoch: int = 0, **place: int) -> SavedCheckpoint:
        """Copy a local directory here, as the newest checkpoint; then remove surplus ones and those left incomplete."""
        before = self.complete()
        sizes = {str(path.relative_to(local)): path.stat().st_size for path in Path(local).rglob("*") if path.is_file()}
        number = before[-1].number + 1 if before else 0
        checksums = {name: _checksum(Path(local, name)) for name in sizes}
        name = f"step-{step:08d}-{uuid.uuid4().hex[:8]}"
        saved = SavedCheckpoint(name, number, step, epoch, sizes, **place, checksums=checksums)
        target = f"{self._root}/{saved.name}"
        with self._explained("written", _ADVICE):
            for name in sizes:
                remote = f"{target}/{name}"
                self._files.makedirs(remote.rpartition("/")[0], exist_ok=True)
                self._files.put_file(str(Path(local, name)), remote)
            self._files.pipe_file(f"{target}/{_MARKER}", _text(saved))
            self._prune({each.name for each in [*before, saved][-self.keep :]})
        return saved

    def fetch(self, saved: SavedCheckpoint, local: str) -> bool:
        """Copy a checkpoint's files into a directory of this machine; return whether they were there, and unharmed.

        Whoever writes may go on meanwhile, until it is surplus.
        """
        with self._explained("read", "see that you may read there"):
            for name in saved.files:
                target = Path(local, name)
                target.parent.mkdir(parents=True, exist_ok=True)
                try:
                    self._files.get_file(f"{self._root}/{saved.name}/{name}", str(target))
                except FileNotFoundError:
                    return False
                if saved.checksums.get(name, _checksum(target)) != _checksum(target):
                    self.pass_over(saved.name, f"the contents of {name} are not what was written")
                    return False
        return True

    def fetch_newest(self, local: str) -> SavedCheckpoint | None:
        """Copy the newest checkpoint that is complete and unharmed; return it, or None if none was ever written.

        Raises
        ------
        CheckpointError
            If there are some, and none can be read.
        """
        while saved := self.newest():
            if self.fetch(saved, local):
                break
            for each in Path(local).glob("*"):
                shutil.rmtree(each) if each.is_dir() else each.unlink()
            if saved == self.latest():
                raise CheckpointError(f"{self.directory}/{saved.name} could not be read: some of its files are gone")
        return saved

    def newest(self) -> SavedCheckpoint | None:
        """Return the newest checkpoint, as `latest` does; raise if there are some, and all are damaged."""
        saved = self.latest()
        if saved is None and self._damaged:
            raise CheckpointError(
                f"no checkpoint in {self.directory} can be read: damaged are {', '.join(self.damaged)}, and there is "
                "no other; restore their files, or remove them to begin anew"
            )
        return saved

    def clear(self) -> None:
        """Remove all checkpoints, and the directory if nothing else is in it."""
        with self._explained("removed", "see that you may write there"):
            self._prune(set())
            self._files.invalidate_cache()
            # What has no parent is a whole bucket, which is the user's.
            if "/" in self._root.strip("/") and self._files.isdir(self._root) and not self._files.ls(self._root):
                self._files.rmdir(self._root)

    def _names(self) -> list[str]:
        """Return the names of all checkpoints here, complete or not."""
        self._files.invalidate_cache()
        try:
            found = self._files.ls(self._root, detail=False)
        except FileNotFoundError:
            return []
        return [name for path in found if _NAME.fullmatch(name := path.rstrip("/").rpartition("/")[2])]

    def _prune(self, kept: set[str]) -> None:
        for name in set(self._names()) - kept:
            # The list first: what is removed in part must not be taken for complete.
            with suppress(FileNotFoundError):
                self._files.rm_file(f"{self._root}/{name}/{_MARKER}")
            with suppress(FileNotFoundError):
                self._files.rm(f"{self._root}/{name}", recursive=True)

    @contextmanager
    def _explained(self, what: str, advice: str) -> Iterator[None]:
        """Say of an error which directory it is about, and what can be done."""
        try:
            yield
        except Exception as error:  # each file system has its own
            raise CheckpointError(
                f"checkpoints could not be {what} in {self.directory}: {type(error).__name__}: {error}; {advice}"
            ) from error


def _checksum(path: Path) -> int:
    """Return a file's CRC-32C."""
    found = 0
    with path.open("rb") as file:
        while data := file.read(_READ_BYTES):
            found = google_crc32c.extend(found, data)
    return found


def _text(saved: SavedCheckpoint) -> bytes:
    """Return what the marker holds."""
    record = asdict(saved)
    return json.dumps({**record, _OWN_CHECKSUM: _of_record(record)}).encode()


def _parsed(text: bytes) -> SavedCheckpoint | None:
    """Return what a marker says, if it is whole; those of earlier versions have no checksums."""
    try:
        record = json.loads(text)
        if record.pop(_OWN_CHECKSUM, None) not in (None, _of_record(record)):
            return None
        return SavedCheckpoint(**record)
    except (AttributeError, TypeError, ValueError):
        return None


def _of_record(record: dict[str, Any]) -> int:
    return int(google_crc32c.value(json.dumps(record, sort_keys=True).encode()))

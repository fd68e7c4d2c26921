"""Directories that are written once, complete or not there, on any file system: where checkpoints lie.

Not every file system has a rename that makes a directory visible at once (object stores copy file by file), and fsspec
does not tell which has. So there is one way for all: the files go to a place of their own, and last comes a file that
lists them with their sizes. What has no such file, or not all that it lists, is as good as not there.
"""

import json
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

from tensorflowonspark import storage
from tensorflowonspark.errors import CheckpointError

__all__ = ["Saved", "Shelf"]

_NAME = re.compile(r"step-\d{8,}-[0-9a-f]{8}")
_MARKER = "complete.json"
_ADVICE = "see that it is a directory, that you may write there, and that there is room"


@dataclass(frozen=True)
class Saved:
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
    """

    name: str
    number: int
    step: int
    epoch: int
    files: dict[str, int]
    batch: int = 0
    feed: int = 0
    workers: int = 0


class Shelf:
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
    >>> shelf = Shelf("memory://models/digits", keep=2)
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

    def complete(self) -> list[Saved]:
        """Return the complete checkpoints, the newest last."""
        with self._explained("looked for", "see that it is a directory, and that you may read it"):
            found = [saved for name in self._names() if (saved := self.find(name))]
        return sorted(found, key=lambda saved: (saved.number, saved.name))

    def latest(self) -> Saved | None:
        """Return the newest complete checkpoint, if there is any."""
        found = self.complete()
        return found[-1] if found else None

    def find(self, name: str) -> Saved | None:
        """Return the checkpoint of this name, if it is complete."""
        place = f"{self._root}/{name}"
        try:
            saved = Saved(**json.loads(self._files.cat_file(f"{place}/{_MARKER}")))
            found = self._files.find(place, detail=True)
        except (FileNotFoundError, TypeError, ValueError):  # none, or half of one
            return None
        sizes = {str(PurePosixPath(path).relative_to(place)): info["size"] for path, info in found.items()}
        return saved if saved.files.items() <= sizes.items() else None

    def try_writing(self) -> None:
        """Find out whether anything can be written here, before hours of training."""
        probe = f"{self._root}/.probe-{uuid.uuid4().hex}"
        with self._explained("written", _ADVICE):
            self._files.makedirs(self._root, exist_ok=True)
            self._files.pipe_file(probe, b"?")
            self._files.rm_file(probe)

    def add(self, local: str, step: int, epoch: int = 0, **place: int) -> Saved:
        """Copy a local directory here, as the newest checkpoint; then remove surplus ones and those left incomplete."""
        before = self.complete()
        sizes = {str(path.relative_to(local)): path.stat().st_size for path in Path(local).rglob("*") if path.is_file()}
        number = before[-1].number + 1 if before else 0
        saved = Saved(f"step-{step:08d}-{uuid.uuid4().hex[:8]}", number, step, epoch, sizes, **place)
        target = f"{self._root}/{saved.name}"
        with self._explained("written", _ADVICE):
            for name in sizes:
                remote = f"{target}/{name}"
                self._files.makedirs(remote.rpartition("/")[0], exist_ok=True)
                self._files.put_file(str(Path(local, name)), remote)
            self._files.pipe_file(f"{target}/{_MARKER}", json.dumps(asdict(saved)).encode())
            self._prune({each.name for each in [*before, saved][-self.keep :]})
        return saved

    def fetch(self, saved: Saved, local: str) -> bool:
        """Copy a checkpoint's files into a directory of this machine; return whether they were still there.

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
        return True

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

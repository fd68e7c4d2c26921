"""A store of checkpoint directories that are written once, and are complete or absent, on any file system.

Not every file system can make a directory visible at once by a rename (object stores copy file by file), and fsspec
does not report which can. So all are treated alike: the files are written to a separate directory, and last a marker
file that lists them with their sizes and checksums. A directory without a marker, or without all files that it lists,
does not count; a damaged one is skipped with a warning.
"""

import json
import logging
import math
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from operator import attrgetter
from pathlib import Path, PurePosixPath
from typing import Any

import google_crc32c

from tensorflowonspark import storage
from tensorflowonspark.errors import CheckpointError, StorageError

_log = logging.getLogger(__name__)
_NAME = re.compile(r"step-\d{8,}-[0-9a-f]{8}")
_MARKER = "complete.json"
_MARKER_CHECKSUM = "crc32c"  # key in the marker: the checksum of all other keys
_VALIDATION = "validation.json"  # which an evaluator adds, with the same key
_PARTS = "parts"  # folder of the files that workers write and read for themselves
_LISTS = "lists"  # folder of the lists of these files, one for each worker
_READ_BYTES = 1 << 20
_MANY_AWAITED = 10
_SAME_DIRECTORY = "check that all nodes write to the same directory"
_ADVICE = "check that it is a directory, that you may write there, and that the disk has space"


@dataclass(frozen=True)
class SavedCheckpoint:
    """The record of a complete checkpoint."""

    name: str
    number: int  # of checkpoints written before it, which is their order: steps may start from 0 again
    step: int
    epoch: int  # complete ones; 0 if the program does not count them
    files: dict[str, int]  # bytes, by the path within the directory
    batch: int = 0  # steps taken in the epoch that was not complete
    feed: int = 0  # of these steps
    workers: int = 0  # nodes that trained, on which the rows of a step depend
    # fingerprint of the feed's rows and their partitions, on which these depend too; 0 if it is not known
    rows: int = 0
    # CRC-32C, by path; empty in checkpoints of earlier versions
    checksums: dict[str, int] = field(default_factory=dict)
    metric: str = ""  # that says which checkpoint is best; empty if none does
    value: float | None = None  # None within an epoch, and where it is not finite
    mode: str = ""  # "min" or "max", whichever is better; empty without a metric
    keep: int = 0  # how many its writer keeps; 0 in those of earlier versions
    # What an evaluator has found, which is in a file of its own: the values of all epochs up to this one, and their
    # numbers; and whether they end the training.
    validation: dict[str, list[float]] = field(default_factory=dict)
    ends: bool = False
    # By which copies on executors (`copies`) are compared with it: the run that wrote it, and restarts before that.
    run: str = ""
    attempt: int = 0
    writers: int = 0  # of a copy: workers that list their parts themselves

    @property
    def own_files(self) -> dict[str, int]:
        """The files that are no parts."""
        return {path: size for path, size in self.files.items() if not path.startswith(f"{_PARTS}/")}

    def with_parts(self, parts: dict[str, tuple[int, int]]) -> "SavedCheckpoint":
        """Return a record of the parts, by their path with size and checksum, beside the other files."""
        sizes, checksums = ({path: each[place] for path, each in parts.items()} for place in (0, 1))
        return replace(self, files={**self.files, **sizes}, checksums={**self.checksums, **checksums})


_TEXTS = ("name", "metric", "mode", "run")  # fields that are no numbers
_TABLES = ("files", "checksums")
_EVALUATED = ("validation", "ends")  # fields that are not in the marker


class CheckpointStore:
    """The checkpoints in one directory, with one writing process and any number of readers.

    It keeps so many complete checkpoints: the newest, or if they have values of a metric, the best and the newest; and
    as long as it `awaits` their evaluation, those that an evaluator has yet to evaluate.

    With `files` and a `root` there, the directory is that of another file system, and its name is for errors. A file in
    the directory's place is an error, unless there may be one (`or_file`): then there are no checkpoints.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> store = CheckpointStore("memory://models/digits", keep=2)
    >>> with tempfile.TemporaryDirectory() as local:
    ...     _ = Path(local, "state").write_text("weights")
    ...     steps = [store.add(local, step).step for step in (10, 20, 30)]
    >>> [saved.step for saved in store.complete()]
    [20, 30]
    >>> store.clear()
    """

    def __init__(
        self,
        directory: str,
        keep: int,
        awaits: Callable[[], bool] = lambda: False,
        *,
        files: Any = None,
        root: str = "",
        or_file: bool = False,
    ) -> None:
        self.directory = directory.rstrip("/")
        self.keep = keep
        self._awaits = awaits
        self._warned = False
        self._or_file = or_file
        self._files, self._root = (files, root) if files is not None else storage.file_system(self.directory)
        self._damaged: set[str] = set()  # names of those that were reported, and no longer count

    @property
    def damaged(self) -> list[str]:
        """Names of the damaged checkpoints found so far."""
        return sorted(self._damaged)

    def complete(self) -> list[SavedCheckpoint]:
        """Return the complete checkpoints, the newest last."""
        with self._explained("listed", "check that it is a directory, and that you may read it"):
            found = [saved for name in self._names() if (saved := self.find(name))]
        return sorted(found, key=lambda saved: (saved.number, saved.name))

    def latest(self) -> SavedCheckpoint | None:
        """Return the newest complete checkpoint, or None."""
        found = self.complete()
        return found[-1] if found else None

    def best(self, metric: str = "") -> SavedCheckpoint | None:
        """Return the best complete checkpoint by a metric, by default that of the newest; None if none has a value."""
        found = self.complete()
        metric = metric or next((each.metric for each in reversed(found) if each.metric), "")
        return next(iter(_best_first(found, metric)), None)

    def unevaluated(self, found: list[SavedCheckpoint]) -> list[SavedCheckpoint]:
        """Return those of complete checkpoints that an evaluator has yet to evaluate, which it does in their order."""
        last = max((each.number for each in found if each.validation), default=-1)
        return [each for each in found if each.epoch and not each.batch and each.number > last]

    def find(self, name: str) -> SavedCheckpoint | None:
        """Return the checkpoint of this name, or None if it is incomplete or damaged."""
        if name in self._damaged:
            return None
        root = f"{self._root}/{name}"
        try:
            text = self._files.cat_file(f"{root}/{_MARKER}")
            found = self._files.find(root, detail=True)
        except FileNotFoundError:
            return None
        saved = _parsed(text)
        if saved is None or saved.name != name:
            self.skip(name, f"its {_MARKER} is not as it was written")
            return None
        try:
            for each in saved.files:
                storage.check_member(f"its {_MARKER}", each)
        except StorageError as error:
            self.skip(name, str(error))
            return None
        if saved.writers:
            if len(self._lists(name)) < saved.writers:
                return None
            saved = saved.with_parts(self._listed_parts(name))
        sizes = {str(PurePosixPath(path).relative_to(root)): info["size"] for path, info in found.items()}
        wrong = [each for each, size in saved.files.items() if sizes.get(each) != size]
        if wrong and self._files.exists(f"{root}/{_MARKER}"):  # otherwise the writer is removing it
            self.skip(name, f"{wrong[0]} is missing, or differs in size from what was written")
        return None if wrong else self._with_validation(saved) if _VALIDATION in sizes else saved

    def _with_validation(self, saved: SavedCheckpoint) -> SavedCheckpoint:
        """Return a checkpoint with what an evaluator has found; as it is if that is not written to its end."""
        with suppress(FileNotFoundError, KeyError):
            record = _opened(self._files.cat_file(f"{self._root}/{saved.name}/{_VALIDATION}")) or {}
            found = replace(saved, **{name: record[name] for name in _EVALUATED})
            if saved.value is None and saved.metric in ("", record["metric"]):
                return replace(found, **{name: record[name] for name in ("metric", "mode", "value")})
            return found
        return saved

    def add_validation(self, saved: SavedCheckpoint, **fields: Any) -> None:
        """Write what an evaluator has found of a checkpoint: the fields of its record."""
        with self._explained("evaluated", _ADVICE):
            self._write(f"{saved.name}/{_VALIDATION}", _sealed(fields))

    def prune(self) -> None:
        """Remove surplus and incomplete checkpoints; nobody may write meanwhile."""
        if found := self.complete():
            with self._explained("removed", "check that you may write there"):
                self._prune(self._kept(found))

    def skip(self, name: str, problem: str) -> None:
        """Warn of a damaged checkpoint, once; it no longer counts, and the next `add` removes it."""
        if name not in self._damaged:
            self._damaged.add(name)
            _log.warning("the checkpoint %s/%s is damaged and skipped: %s", self.directory, name, problem)

    def check_writable(self) -> None:
        """Check that the directory can be written, before hours of training."""
        probe = f".probe-{uuid.uuid4().hex}"
        with self._explained("written", _ADVICE):
            self._write(probe, b"?")
            self._files.rm_file(f"{self._root}/{probe}")

    def new_name(self, step: int) -> str:
        """Return the name of a checkpoint to be written after a step."""
        return f"step-{step:08d}-{uuid.uuid4().hex[:8]}"

    def describe(self, local: str, step: int, epoch: int = 0, *, name: str = "", **fields: Any) -> SavedCheckpoint:
        """Return the record of a local directory as a checkpoint; `fields` are the position in the rows, the metric."""
        sizes = {str(path.relative_to(local)): path.stat().st_size for path in Path(local).rglob("*") if path.is_file()}
        checksums = {each: _checksum(Path(local, each)) for each in sizes}
        number = fields.pop("number", 0)
        name = name or self.new_name(step)
        return SavedCheckpoint(name, number, step, epoch, sizes, **fields, keep=self.keep, checksums=checksums)

    def add(self, local: str, step: int, epoch: int = 0, **fields: Any) -> SavedCheckpoint:
        """Store a copy of a local directory as the newest checkpoint; `fields` are those of its record (`describe`)."""
        return self.add_described(local, self.describe(local, step, epoch, **fields), has_parts="name" in fields)

    def add_described(self, local: str, described: SavedCheckpoint, has_parts: bool) -> SavedCheckpoint:
        """Store a copy of a local directory as the newest checkpoint; then remove surplus and incomplete ones.

        If it `has_parts`, those that workers have written under its name (`add_parts`) belong to it.
        """
        before = self.complete()
        number = max(described.number, before[-1].number + 1 if before else 0)
        parts = self._listed_parts(described.name) if has_parts else {}
        saved = replace(described, number=number).with_parts(parts)
        with self._explained("written", _ADVICE):
            for each in described.own_files:
                self._write(f"{saved.name}/{each}", Path(local, each))
            self._write(f"{saved.name}/{_MARKER}", _text(saved))
            self._prune(self._kept([*before, saved]))
        return saved

    def _kept(self, found: list[SavedCheckpoint]) -> set[str]:
        """Return the names of those to keep, of all, the newest last: it, the best, and others while there is room."""
        newest = found[-1]
        metric = newest.metric or next((each.metric for each in reversed(found) if each.validation), "")
        best = _best_first(found, metric)
        others = [each for each in reversed(found) if each not in best]
        awaited = self.unevaluated(found) if self._awaits() else []
        if len(awaited) > _MANY_AWAITED and not self._warned:
            self._warned = True
            text = "%d checkpoints in %s are kept until the evaluator has evaluated them (ctx.evaluate_checkpoints)"
            _log.warning(text, len(awaited), self.directory)
        return {newest.name, *(each.name for each in [*[*best, *others][: self.keep], *awaited])}

    def add_parts(self, name: str, worker: str, parts: Iterable[tuple[str, bytes]]) -> None:
        """Write one worker's parts of a checkpoint that is not complete yet, one after another, and list them.

        The names of the parts differ from those of other workers.
        """
        listed: dict[str, tuple[int, int]] = {}
        with self._explained("written", _ADVICE):
            for part, contents in parts:
                listed[part_path(part)] = part_entry(contents)
                self._write(f"{name}/{part_path(part)}", contents)
            path, text = part_list(worker, listed)
            self._write(f"{name}/{path}", text)

    def _write(self, path: str, contents: bytes | Path) -> None:
        """Write a file below the directory: bytes, or what a file of this machine has."""
        remote = f"{self._root}/{path}"
        self._files.makedirs(remote.rpartition("/")[0], exist_ok=True)
        if isinstance(contents, Path):
            self._files.put_file(str(contents), remote)
        else:
            self._files.pipe_file(remote, contents)

    def unlisted(self, name: str, workers: set[str]) -> set[str]:
        """Return those of some workers whose lists of parts of a checkpoint are not seen here as a whole."""
        lists = self._lists(name)
        if missing := workers - lists.keys():
            return missing
        with self._explained("read", _SAME_DIRECTORY):
            return {worker for worker in workers if _of_json(self._files.cat_file(lists[worker])) is None}

    def _lists(self, name: str) -> dict[str, str]:
        """Return the paths of the lists of parts of a checkpoint, by worker; none if nothing is divided."""
        with self._explained("read", _SAME_DIRECTORY):
            self._files.invalidate_cache()
            try:
                found = self._files.ls(f"{self._root}/{name}/{_LISTS}", detail=False)
            except FileNotFoundError:
                return {}
        return {PurePosixPath(each).stem.replace("-", ":"): each for each in found}

    def _listed_parts(self, name: str) -> dict[str, tuple[int, int]]:
        """Return the size and checksum of each part of a checkpoint, by its path."""
        found: dict[str, tuple[int, int]] = {}
        for each in self._lists(name).values():
            with self._explained("read", _SAME_DIRECTORY):
                for part, (size, checksum) in json.loads(self._files.cat_file(each)).items():
                    if not part.startswith(f"{_PARTS}/") or type(size) is not int or type(checksum) is not int:
                        raise ValueError(f"{each} lists {part!r}: {size!r}, {checksum!r}, which is no part")
                    found[storage.check_member(each, part)] = size, checksum
        return found

    def part_names(self, saved: SavedCheckpoint) -> list[str]:
        """Return the names of a checkpoint's parts, of all workers."""
        return [each.removeprefix(f"{_PARTS}/") for each in saved.files if each.startswith(f"{_PARTS}/")]

    def read_part(self, saved: SavedCheckpoint, name: str) -> bytes:
        """Return the contents of a part; raise `CheckpointError` if it is missing or damaged."""
        part = part_path(name)
        with self._explained("read", "check that you may read there"):
            contents = bytes(self._files.cat_file(f"{self._root}/{saved.name}/{part}"))
        if google_crc32c.value(contents) != saved.checksums.get(part):
            raise CheckpointError(f"{self.directory}/{saved.name}: the contents of {part} are not as they were written")
        return contents

    def fetch(self, saved: SavedCheckpoint, local: str) -> bool:
        """Copy a checkpoint's files, but not its parts, to a local directory; return whether all were undamaged.

        The writer may continue meanwhile, until it removes this checkpoint as surplus.
        """
        with self._explained("read", "check that you may read there"):
            for name in saved.own_files:
                target = Path(local, name)
                target.parent.mkdir(parents=True, exist_ok=True)
                try:
                    self._files.get_file(f"{self._root}/{saved.name}/{name}", str(target))
                except FileNotFoundError:
                    return False
                if name in saved.checksums and saved.checksums[name] != _checksum(target):
                    self.skip(saved.name, f"the contents of {name} are not as they were written")
                    return False
        return True

    def newest(self) -> SavedCheckpoint | None:
        """Return the newest checkpoint like `latest`, but raise if checkpoints exist and all are damaged."""
        saved = self.latest()
        if saved is None and self._damaged:
            raise CheckpointError(
                f"no checkpoint in {self.directory} can be read: {', '.join(self.damaged)} are damaged, and no other "
                "exists; restore their files, or remove them to start from the beginning"
            )
        return saved

    def clear(self) -> None:
        """Remove all checkpoints, and the directory if it is empty then."""
        with self._explained("removed", "check that you may write there"):
            self._prune(set())
            self._files.invalidate_cache()
            # A root without a parent is a whole bucket, which belongs to the user.
            if "/" in self._root.strip("/") and self._files.isdir(self._root) and not self._files.ls(self._root):
                self._files.rmdir(self._root)

    def _names(self) -> list[str]:
        """Return the names of all checkpoints, complete or not; raise if a file is there that may not be."""
        self._files.invalidate_cache()
        try:
            found = self._files.ls(self._root, detail=False)
        except FileNotFoundError:
            return []
        if len(found) == 1 and not self._or_file and self._files.isfile(self._root):  # which lists itself
            raise NotADirectoryError(f"{self._root} is a file")
        return [name for path in found if _NAME.fullmatch(name := path.rstrip("/").rpartition("/")[2])]

    def _prune(self, kept: set[str]) -> None:
        for name in set(self._names()) - kept:
            # The marker first: a checkpoint that is removed in part must not count as complete.
            with suppress(FileNotFoundError):
                self._files.rm_file(f"{self._root}/{name}/{_MARKER}")
            with suppress(FileNotFoundError):
                self._files.rm(f"{self._root}/{name}", recursive=True)

    @contextmanager
    def _explained(self, action: str, advice: str) -> Iterator[None]:
        """Add the directory and a remedy to errors."""
        try:
            yield
        except Exception as error:  # each file system raises other types
            raise CheckpointError(
                f"checkpoints could not be {action} in {self.directory}: {type(error).__name__}: {error}; {advice}"
            ) from error


Source = tuple[CheckpointStore, SavedCheckpoint]  # a checkpoint, and where it is read


def fetch_first(
    local: str, choose: Callable[[], Source | None], read: Callable[[Source], bool] = lambda _: True
) -> Source | None:
    """Copy the first checkpoint that `choose` returns to a local directory; return it, or None if it returns none.

    It is undamaged, and `read` takes what it needs beside. A `CheckpointError` says that its files are missing.
    """
    while found := choose():
        store, saved = found
        if store.fetch(saved, local) and read(found):
            break
        for each in Path(local).glob("*"):
            shutil.rmtree(each) if each.is_dir() else each.unlink()
        if found == choose():
            raise CheckpointError(f"{store.directory}/{saved.name} could not be read: some of its files are missing")
    return found


def part_path(part: str) -> str:
    """Return the path of a worker's part in a checkpoint."""
    return f"{_PARTS}/{part}"


def part_entry(contents: bytes) -> tuple[int, int]:
    """Return what a list has of a part: its size and its checksum."""
    return len(contents), int(google_crc32c.value(contents))


def part_list(worker: str, listed: dict[str, tuple[int, int]]) -> tuple[str, bytes]:
    """Return the path and the contents of a list of a worker's parts, by their path, with size and checksum."""
    return f"{_LISTS}/{worker.replace(':', '-')}.json", json.dumps(listed).encode()


def marker(saved: SavedCheckpoint) -> tuple[str, bytes]:
    """Return the path and the contents of the file that makes a checkpoint complete."""
    return _MARKER, _text(saved)


def _best_first(found: list[SavedCheckpoint], metric: str) -> list[SavedCheckpoint]:
    """Return the checkpoints that have a value of a metric, the best first, and of equal ones the oldest."""
    measured = [each for each in found if metric and each.metric == metric and each.value is not None]
    return sorted(measured, key=attrgetter("value"), reverse=bool(measured) and measured[-1].mode == "max")


def _checksum(path: Path) -> int:
    """Return a file's CRC-32C."""
    found = 0
    with path.open("rb") as file:
        while data := file.read(_READ_BYTES):
            found = google_crc32c.extend(found, data)
    return found


def _text(saved: SavedCheckpoint) -> bytes:
    """Return the contents of a marker."""
    return _sealed({name: value for name, value in asdict(saved).items() if name not in _EVALUATED})


def _sealed(record: dict[str, Any]) -> bytes:
    """Return a record with its checksum as JSON."""
    return json.dumps({**record, _MARKER_CHECKSUM: _record_checksum(record)}).encode()


def _of_json(text: bytes) -> Any:
    """Return what a JSON text says; None if it is not whole, as a file that is being written."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def _opened(text: bytes) -> dict[str, Any] | None:
    """Return the record in a JSON text, or None if it is damaged."""
    try:
        record: dict[str, Any] = json.loads(text)
        return record if record.pop(_MARKER_CHECKSUM, None) in (None, _record_checksum(record)) else None
    except (AttributeError, TypeError, ValueError, RecursionError):
        return None


def _parsed(text: bytes) -> SavedCheckpoint | None:
    """Return the record in a marker, or None if it is damaged.

    Markers of earlier versions have no checksums. What a later version has added is passed over: as if it were damaged,
    its checkpoints would be removed here.
    """
    record = _opened(text)
    if record is None:
        return None
    try:
        names = [each.name for each in fields(SavedCheckpoint) if each.name not in _EVALUATED]
        known = {name: record[name] for name in names if name in record}
        saved = SavedCheckpoint(**known)
        numbers = [value for name, value in known.items() if name not in (*_TEXTS, *_TABLES, "value")]
        numbers += [*saved.files.values(), *saved.checksums.values()]
        texts = [getattr(saved, name) for name in _TEXTS]
        is_right = all(type(each) is int and each >= 0 for each in numbers) and all(type(each) is str for each in texts)
        return saved if is_right and (saved.value is None or math.isfinite(saved.value)) else None
    except (AttributeError, TypeError, ValueError, RecursionError):
        return None


def _record_checksum(record: dict[str, Any]) -> int:
    return int(google_crc32c.value(json.dumps(record, sort_keys=True).encode()))

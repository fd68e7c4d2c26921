"""Copies of checkpoints on an executor's disk: what its nodes have written, and what those of other hosts have sent.

A copy is laid out as the checkpoint is in its own directory (`checkpoint.store`). What lists its files is written
last. The files of one checkpoint may be on several executors: each worker has its own parts. `checkpoint.copies` looks
for them on all.
"""

import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa

from tensorflowonspark import storage

PIECES = pa.schema([("path", pa.string()), ("data", pa.large_binary())])
_PIECE_BYTES = 4 << 20  # of a file, in one message


@dataclass(frozen=True)
class CopyHeader:
    """Sent before files of a checkpoint; and of which others no copies are needed when these are there."""

    key: str  # of the checkpoints' directory
    surplus: tuple[str, ...] | None = ()  # names of checkpoints; None: all


@dataclass(frozen=True)
class CopiesWanted:
    """Asks for the paths and sizes of all files of copies; or for the contents of a file."""

    key: str
    path: str = ""


class CopyFolder:
    """The copies that nodes of this executor keep, of all directories of checkpoints of a run.

    Examples
    --------
    >>> import tempfile
    >>> folder = CopyFolder(tempfile.mkdtemp())
    >>> folder.write("digits", "step-00000010-0a1b2c3d/state", [b"weig", b"hts"])
    >>> folder.sizes("digits")
    {'step-00000010-0a1b2c3d/state': 7}
    >>> folder.remove("digits", None)
    >>> folder.sizes("digits")
    {}
    """

    def __init__(self, directory: str) -> None:
        self._root = Path(directory)

    def path(self, key: str, path: str) -> Path:
        """Return where a file of a copy is; its folder exists."""
        self._root.mkdir(mode=0o700, exist_ok=True)
        found = self._root / key / storage.check_member(f"a copy in {self._root}", path)
        found.parent.mkdir(parents=True, exist_ok=True)
        return found

    def write(self, key: str, path: str, pieces: Iterable[Any]) -> None:
        """Write a file of a copy, which is there when it is complete."""
        target = self.path(key, path)
        half = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
        try:
            with half.open("wb") as file:
                for each in pieces:
                    file.write(each)
            half.replace(target)
        finally:
            half.unlink(missing_ok=True)

    def sizes(self, key: str) -> dict[str, int]:
        """Return the size in bytes of each file of all copies, by its path."""
        found = {}
        for folder, _, files in os.walk(root := self._root / key):
            for each in files:
                with suppress(FileNotFoundError):  # another node of this executor removes it
                    path = Path(folder, each)
                    found[str(path.relative_to(root))] = path.stat().st_size
        return found

    def names(self, key: str) -> set[str]:
        """Return the names of the checkpoints of which there are files."""
        root = self._root / key
        return {each.name for each in root.iterdir()} if root.is_dir() else set()

    def remove(self, key: str, names: Iterable[str] | None) -> None:
        """Remove the copies of these checkpoints, or all."""
        root = self._root / key
        for each in [root] if names is None else [root / storage.check_member(str(root), name) for name in names]:
            shutil.rmtree(each, ignore_errors=True)

    def pieces(self, key: str, path: str) -> Iterator[pa.RecordBatch]:
        """Yield a file in pieces, at least one."""
        with self.path(key, path).open("rb") as file:
            data = file.read(_PIECE_BYTES)
            while True:
                yield _piece(path, data)
                if not (data := file.read(_PIECE_BYTES)):
                    return

    # ---- for nodes of other executors

    def receive(self, header: CopyHeader, batches: Iterable[pa.RecordBatch]) -> int:
        """Write the files that a node sends; return their number."""
        pieces = ((batch.column(0)[0].as_py(), batch.column(1)[0].as_buffer()) for batch in batches)
        files = 0
        for path, found in groupby(pieces, itemgetter(0)):
            self.write(header.key, path, map(itemgetter(1), found))
            files += 1
        self.remove(header.key, header.surplus)
        return files

    def answer(self, header: CopiesWanted) -> Iterator[pa.RecordBatch]:
        """Yield what a node asks for, in pieces."""
        if header.path:
            yield from self.pieces(header.key, header.path)
        else:
            sizes = json.dumps(self.sizes(header.key)).encode()
            yield _piece("", sizes)


def _piece(path: str, data: bytes) -> pa.RecordBatch:
    """Return a piece of a file without copying it."""
    offsets = pa.array([0, len(data)], pa.int64()).buffers()[1]
    column = pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, pa.py_buffer(data)])
    return pa.record_batch([[path], column], schema=PIECES)

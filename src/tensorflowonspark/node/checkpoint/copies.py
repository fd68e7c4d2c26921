"""The copies of a training's checkpoints on its executors: one on a worker's own, others on those of other hosts.

A restart of the cluster restores from them what the checkpoints' directory lacks, or can't give. They last as long as
the run: a later one begins with what is in the directory.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
from fsspec import AbstractFileSystem

from tensorflowonspark import transport
from tensorflowonspark.errors import CheckpointError, StorageError
from tensorflowonspark.messages import NodeEndpoint
from tensorflowonspark.node.checkpoint.store import (
    CheckpointStore,
    SavedCheckpoint,
    Source,
    marker,
    part_entry,
    part_list,
    part_path,
)
from tensorflowonspark.node.copy_folder import PIECES, CopiesWanted, CopyFolder, CopyHeader
from tensorflowonspark.node.driver_link import Link
from tensorflowonspark.node.setup import NodeSetup

_log = logging.getLogger(__name__)
_ROOT = "copies"
_AT_ONCE = 16  # nodes that are asked for their copies
Listing = dict[str, tuple[int, NodeEndpoint]]  # the size of each file in bytes, and a node that has it, by its path


class Copies:
    """The copies of the checkpoints in one directory, of which this node writes some and reads all.

    `hosts` is on how many others they are.
    """

    def __init__(self, link: Link, setup: NodeSetup, directory: str, hosts: int) -> None:
        self._link = link
        self._setup = setup
        self.hosts = hosts
        self._key = hashlib.sha256(directory.encode()).hexdigest()[:16]
        self._folder = CopyFolder(setup.run_directory)
        self._endpoints: tuple[NodeEndpoint, ...] = ()
        self._names: list[str] = []  # of checkpoints that this node has written or restored, the newest last
        self._old: set[str] = set()  # names of checkpoints that had copies here before this attempt wrote any
        self._divided = False
        self._is_short = False  # of hosts, which was a warning
        self._number = -1  # of the last checkpoint that is known
        self._found: tuple[Listing, CheckpointStore] | None = None  # during a restore

    @property
    def stamp(self) -> dict[str, Any]:
        """The fields of a checkpoint's record by which it is compared with copies."""
        return {"run": self._setup.config.run, "attempt": self._setup.config.attempt}

    # ---- writing

    def numbered(self, described: SavedCheckpoint, newest: Callable[[], int]) -> SavedCheckpoint:
        """Return the record of the next checkpoint with its number; `newest` returns that of the directory's last."""
        self._number = 1 + (self._number if self._number >= 0 else newest())
        return replace(described, number=self._number)

    def keep(self, saved: SavedCheckpoint, local: str) -> None:
        """Keep copies of a local directory, which has all of a checkpoint but its parts; what fails is a warning."""
        folder = Path(local)
        files = [str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file()]
        with self._warning(saved.name):
            for each in files:
                _link_or_copy(folder / each, self._folder.path(self._key, f"{saved.name}/{each}"))
            self._list_and_send(saved.name, files, *marker(saved))

    def keep_parts(self, name: str, parts: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
        """Keep copies of this worker's parts of a checkpoint; what fails is a warning. Return the parts."""
        self._divided = True
        left, kept = iter(parts), list[tuple[str, bytes | Path]]()
        with self._warning(name):
            listed: dict[str, tuple[int, int]] = {}
            for part, contents in left:
                kept.append((part, contents))
                path = part_path(part)
                self._folder.write(self._key, f"{name}/{path}", [contents])
                kept[-1] = part, self._folder.path(self._key, f"{name}/{path}")
                listed[path] = part_entry(contents)
            self._list_and_send(name, list(listed), *part_list(str(self._setup.role), listed))
        found = ((part, each if isinstance(each, bytes) else each.read_bytes()) for part, each in kept)
        return chain(found, left)

    def _list_and_send(self, name: str, files: list[str], list_path: str, text: bytes) -> None:
        """Write what lists files of a checkpoint that are in the folder, and send all to other hosts."""
        self._folder.write(self._key, f"{name}/{list_path}", [text])
        self._names = [*(each for each in self._names if each != name), name]
        kept = 2 if self._divided else 1  # the one before is complete until all workers have written this one
        surplus, self._names = tuple(self._names[:-kept]), self._names[-kept:]
        self._folder.remove(self._key, surplus)
        for node in self._neighbours():
            with self._connected(node) as connection:
                stream = connection.put(CopyHeader(self._key, surplus), PIECES)
                for each in (*files, list_path):
                    for piece in self._folder.pieces(self._key, f"{name}/{each}"):
                        stream.write(piece)
                stream.finish()

    def _neighbours(self) -> list[NodeEndpoint]:
        """Return the next nodes, by their number, of as many other hosts as there are to be copies."""
        own = self._setup.number
        found: dict[str, NodeEndpoint] = {}
        for each in sorted(self._nodes(), key=lambda each: (each.number <= own, each.number)):
            if each.host != self._setup.host:
                found.setdefault(each.host, each)
        if len(found) < self.hosts and not self._is_short:
            self._is_short = True
            text = "copies=%d: %s has copies of checkpoints on %d host(s) in place of %d, since workers are on no more"
            _log.warning(text, self.hosts, self._setup.role, len(found) + 1, self.hosts + 1)
        return list(found.values())[: self.hosts]

    def _nodes(self) -> tuple[NodeEndpoint, ...]:
        self._endpoints = self._endpoints or self._link.endpoints()
        return self._endpoints

    @contextmanager
    def _connected(self, node: NodeEndpoint) -> Iterator[transport.Connection]:
        address = node.host, node.ready.feed_port
        try:
            with closing(
                transport.connect(address, self._setup.credentials, identity=node.ready.identity)
            ) as connection:
                yield connection
        except OSError as error:
            self._endpoints = ()  # a node that was started again has another one
            raise OSError(f"{node.name} on {node.host}: {error}") from error

    @contextmanager
    def _warning(self, name: str) -> Iterator[None]:
        try:
            yield
        except (OSError, StorageError, pa.ArrowException) as error:
            _log.warning("%s has not all of its copies (copies=%d): %s", name, self.hosts, error)

    def clear(self) -> None:
        """Remove all copies on the executors of this attempt, if there may be any."""
        if not self._names and not self._setup.config.attempt:
            return
        self._folder.remove(self._key, None)
        self._names = []
        for node in self._nodes():
            with self._warning("a checkpoint that was removed"), self._connected(node) as connection:
                connection.put(CopyHeader(self._key, None), PIECES).finish()

    # ---- reading

    def find(self) -> Listing:
        """Return all files of copies on the executors of this attempt; of a first attempt none."""
        if not self._setup.config.attempt:
            return {}
        found: Listing = {}
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            for node, sizes in zip(self._nodes(), threads.map(self._sizes, self._nodes()), strict=True):
                found.update({path: (size, node) for path, size in sizes.items()})
        return found

    def _sizes(self, node: NodeEndpoint) -> dict[str, int]:
        if node.number == self._setup.number:
            return self._folder.sizes(self._key)
        try:
            text = b"".join(self._request(node, CopiesWanted(self._key)))
            return {str(path): int(size) for path, size in json.loads(text).items()}
        except (OSError, ValueError, AttributeError) as error:
            _log.warning("copies on %s on %s can't be used: %s", node.name, node.host, error)
            return {}

    def store(self, listing: Listing) -> CheckpointStore:
        """Return the checkpoints of which there are copies, to be read from them."""
        self._old = self._folder.names(self._key)
        return CheckpointStore("copies on executors", 1, files=CopyFiles(listing, self._read), root=_ROOT)

    def newest(self) -> Source | None:
        """Return the newest checkpoint of which this run has copies."""
        if self._found is None:
            listing = self.find()
            self._found = listing, self.store(listing)
        store = self._found[1]
        try:
            saved = store.latest()
        except CheckpointError as error:
            _log.warning("copies can't be used: %s", error)
            return None
        return (store, saved) if saved else None

    def listing_of(self, store: CheckpointStore) -> Listing | None:
        """Return what other workers need to read the checkpoints of a store; None if those are no copies."""
        return self._found[0] if self._found is not None and store is self._found[1] else None

    def store_of(self, listing: Listing) -> CheckpointStore:
        """Return the copies that the chief has found."""
        return self._found[1] if self._found is not None else self.store(listing)

    def restored(self, saved: SavedCheckpoint | None) -> None:
        """Remove the former copies here but those of the checkpoint, if any, from which the training goes on."""
        self._found, self._number = None, saved.number if saved else -1
        self._names = [saved.name] if saved else []
        self._folder.remove(self._key, self._old.difference(self._names))

    def _read(self, path: str, size: int, node: NodeEndpoint) -> Path | Iterator[Any]:
        """Return a file, if it is on this executor, or else pieces of that of a node."""
        own = self._folder.path(self._key, path)
        if own.is_file() and own.stat().st_size == size:
            return own
        return self._request(node, CopiesWanted(self._key, path))

    def _request(self, node: NodeEndpoint, header: CopiesWanted) -> Iterator[Any]:
        with self._connected(node) as connection:
            for each in connection.exchange(header, PIECES).drain():
                yield each.column(1)[0].as_buffer()


def is_newer(copy: SavedCheckpoint, saved: SavedCheckpoint | None) -> bool:
    """Return whether a checkpoint of which this run has copies is at least as new as the directory's newest one."""
    if saved is None or saved.run != copy.run:  # of a run before this one
        return True
    return (copy.attempt, copy.number) >= (saved.attempt, saved.number)


class CopyFiles(AbstractFileSystem):
    """The files of copies, on several executors, as one file system to read from.

    `read` returns a file of this executor, or the pieces of one of the node that has it, by its path, size and node.
    """

    cachable = False

    def __init__(self, listing: Listing, read: Callable[[str, int, NodeEndpoint], Path | Iterator[Any]]) -> None:
        super().__init__()
        self._listing = {f"{_ROOT}/{path}": found for path, found in listing.items()}
        self._of = read

    def ls(self, path: str, detail: bool = True, **_options: Any) -> list[Any]:
        """Return what is in a directory."""
        prefix, found = f"{path.strip('/')}/", dict[str, dict[str, Any]]()
        for each, (size, _) in self._listing.items():
            if each.startswith(prefix):
                name, sep, _rest = each.removeprefix(prefix).partition("/")
                kind = {"size": 0, "type": "directory"} if sep else {"size": size, "type": "file"}
                found[name] = {"name": prefix + name, **kind}
        if not found:
            raise FileNotFoundError(path)
        return list(found.values()) if detail else [each["name"] for each in found.values()]

    def _contents(self, path: str) -> Path | Iterator[Any]:
        if path not in self._listing:
            raise FileNotFoundError(path)
        return self._of(path.removeprefix(f"{_ROOT}/"), *self._listing[path])

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_options: Any) -> bytes:
        """Return the contents of a file."""
        found = self._contents(path)
        return (found.read_bytes() if isinstance(found, Path) else b"".join(found))[start:end]

    def get_file(self, rpath: str, lpath: str, **_options: Any) -> None:
        """Copy a file to this machine, to be read only."""
        found = self._contents(rpath)
        if isinstance(found, Path):
            _link_or_copy(found, Path(lpath))
            return
        with Path(lpath).open("wb") as file:
            for each in found:
                file.write(each)


def _link_or_copy(source: Path, target: Path) -> None:
    """Have a file in another folder too, which is not changed there: without its bytes, if one disk has both."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)

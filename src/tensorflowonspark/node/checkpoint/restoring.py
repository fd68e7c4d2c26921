"""Which checkpoint a program goes on from: chosen by the chief for workers that train together, and read by each."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from tensorflowonspark.errors import CheckpointError
from tensorflowonspark.keras.workers import combine
from tensorflowonspark.node.checkpoint.copies import Copies, is_newer
from tensorflowonspark.node.checkpoint.parts import read_parts
from tensorflowonspark.node.checkpoint.position import ResumePosition
from tensorflowonspark.node.checkpoint.saving import SavingNode
from tensorflowonspark.node.checkpoint.store import CheckpointStore, SavedCheckpoint, Source, fetch_first

_log = logging.getLogger(__name__)
_RESTORE = "the checkpoint's restore"


class Restoring:
    """Reads the checkpoints in one directory, and the copies of them."""

    def __init__(
        self, store: CheckpointStore, copies: Copies | None, node: SavingNode, position: ResumePosition | None
    ) -> None:
        self._store = store
        self._copies = copies
        self._node = node
        self._position = position

    def fetch(
        self, shared: bool, local: str, divided: Sequence[Any], choose: Callable[[], Source | None]
    ) -> Source | None:
        """Copy the checkpoint that `choose` returns to this machine; for workers that train together, the chief's.

        Objects that are `divided` among the workers take their parts from it.
        """
        if not shared:
            return fetch_first(local, choose, lambda found: read_parts(*found, divided))
        while True:
            found, problem = self._chiefs_choice(choose) if self._node.is_chief else (None, None)
            listing = self._copies.listing_of(found[0]) if found and self._copies else None
            of_all = combine(_RESTORE, (found[1].name if found else "", problem is None, listing))
            name, readable, listing = of_all[0]
            if not readable:
                raise problem or CheckpointError(f"the chief can read no checkpoint in {self._store.directory}")
            if not name:
                return None
            store = self._store
            if listing is not None and self._copies is not None:
                store = self._copies.store_of(listing)
            saved = found[1] if found else store.find(name)
            read = saved is not None and self._read(store, saved, local, divided)
            if not read and name not in store.damaged:
                raise CheckpointError(
                    f"the chief restores {self._store.directory}/{name}, and {self._node.name} finds no such "
                    "checkpoint: give a directory that all nodes see, and each training its own"
                )
            if combine(_RESTORE, read, all):
                return (store, saved) if saved else None
            store.skip(name, "another worker could not read it")

    def _read(self, store: CheckpointStore, saved: SavedCheckpoint, local: str, divided: Sequence[Any]) -> bool:
        """Read a checkpoint; return whether it was undamaged. If copies can't be read, the directory is next."""
        try:
            return store.fetch(saved, local) and read_parts(store, saved, divided)
        except CheckpointError as error:
            if store is self._store:
                raise
            store.skip(saved.name, str(error))
            return False

    def _chiefs_choice(self, choose: Callable[[], Source | None]) -> tuple[Source | None, CheckpointError | None]:
        """Return what `choose` returns, or the error, which is broadcast to all workers like a name."""
        try:
            return choose(), None
        except CheckpointError as error:
            return None, error

    def newest(self) -> Source | None:
        """Return the newest usable checkpoint: of a restart that of the copies, if it is as new as the directory's."""
        copy = self._copies.newest() if self._copies else None
        try:
            saved = self._store.newest()
        except CheckpointError as error:
            if copy is None:
                raise
            _log.warning("training goes on from the copy of %s (%s)", copy[1].name, error)
            return copy
        if copy is not None and is_newer(copy[1], saved):
            return copy
        saved = self._usable(saved)
        return (self._store, saved) if saved else None

    def _usable(self, saved: SavedCheckpoint | None) -> SavedCheckpoint | None:
        """Return a checkpoint, or None; raise if rows that its program needs are not fed again in this restart."""
        directory, damaged = self._store.directory, self._store.damaged
        if saved and self._position and damaged and not self._position.is_fed_again(saved):
            raise CheckpointError(
                f"damaged in {directory}: {', '.join(damaged)}; {saved.name}, the one before, was written in feed "
                f"{saved.feed}, whose rows are not fed again in this restart: run the whole training again, which "
                "resumes from it"
            )
        if not saved and self._position and (feed := self._position.first_feed(directory)):
            raise CheckpointError(
                f"there is no checkpoint in {directory} on {self._node.host}, and this restart begins with feed "
                f"{feed}, in which one was saved there: what the feeds before taught is lost. If hosts have different "
                "directories of that name, give one that all nodes see, as hdfs://..., s3://... or a shared mount"
            )
        return saved

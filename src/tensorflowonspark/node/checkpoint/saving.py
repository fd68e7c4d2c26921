"""How a checkpoint is written: with what belongs to a state, and what workers that train together agree on."""

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from tensorflowonspark.errors import CheckpointError
from tensorflowonspark.keras.workers import combine, roles
from tensorflowonspark.node.checkpoint.parts import SAVE, StateParts, not_seen
from tensorflowonspark.node.checkpoint.position import ResumePosition
from tensorflowonspark.node.checkpoint.state import StateWriter
from tensorflowonspark.node.checkpoint.store import CheckpointStore, SavedCheckpoint, Source
from tensorflowonspark.node.checkpoint.writer import SavePolicy, Writer
from tensorflowonspark.node.run_record import RunRecord
from tensorflowonspark.run_manifest import FILE

_log = logging.getLogger(__name__)


class Place(NamedTuple):
    """Where a training stands: its steps, its complete epochs, and the steps of the next one."""

    step: int
    epoch: int
    batch: int


@dataclass(frozen=True)
class SavingNode:
    """The node whose program saves."""

    name: str  # in TensorFlow, as in worker:0
    is_chief: bool = True  # it writes the files that are kept
    host: str = "localhost"  # for errors
    scratch: str | None = None  # a directory of this machine for temporary files


class Saving:
    """Writes the checkpoints of a training in one directory.

    `position` describes the rows, and `record` writes the manifest, if a program has them.
    """

    def __init__(
        self,
        store: CheckpointStore,
        policy: SavePolicy,
        node: SavingNode,
        writer: Writer,
        position: ResumePosition | None = None,
        record: RunRecord | None = None,
    ) -> None:
        self._store = store
        self._policy = policy
        self._node = node
        self._writer = writer
        self._position = position
        self._record = record
        self._parts = StateParts(store, node.name, *([writer.copies.keep_parts] if writer.copies else []))
        self._state = StateWriter(node.name, copies=not policy.wait)
        self._lost = ""  # who could not write parts of the checkpoint under way, and why
        self._is_seen = False  # by all workers that train together

    def save(
        self,
        state: Any,
        shared: bool,
        place: Place,
        measured: Mapping[str, Any],
        beside: Callable[[str], None] | None,
    ) -> None:
        """Write a state, which workers may have `shared`; the chief also what `beside` writes to a local directory.

        `measured` is what the record says of the metric.
        """
        at_once = self._policy.wait or (shared and not self._is_seen)  # the others look for what the chief has written
        if not at_once:
            self._begin_beside(state, shared)
        self._writer.make_room(self._policy.max_failures)
        self._lost = ""  # of this one nobody knows yet
        with ExitStack() as stack:
            local = stack.enter_context(TemporaryDirectory(prefix="tfos-", dir=self._node.scratch or None))
            write_rest = self._state.write(state, local, keep=self._node.is_chief, beside=not at_once)
            problem: CheckpointError | None = None
            if at_once:
                (name, problem), parts = self._parts.write(state, place.step), []
                if problem and self._writer.copies is None:
                    raise problem
            else:
                name, own = self._parts.prepare(state, place.step)
                parts = list(own)
            fields = {"name": name, **measured, **(self._writer.copies.stamp if self._writer.copies else {})}
            complete = self._complete(local, shared, place, fields, beside)
            directory = stack.pop_all()

        def copy() -> SavedCheckpoint | None:
            with directory:  # which is removed
                write_rest()
                add = complete() if complete is not None else None
                if parts:
                    self._parts.add(name, parts)
                if problem:
                    raise problem
                if add is None:
                    return None
                if parts and shared:
                    self._parts.wait_for_all(name, lambda: self._lost)
                return add()

        what = f"the checkpoint of step {place.step}"
        written = self._writer.write(copy, what, self._policy.max_failures, at_once=at_once)
        if shared and not self._is_seen:
            self._require_seen(written)

    def _begin_beside(self, state: Any, shared: bool) -> None:
        """Have the chief know of the last checkpoint's parts that a worker could not write, for which it waits.

        Before the first checkpoint of one that saves alone, raise if the directory can't be written.
        """
        if not shared and self._node.is_chief and self._writer.is_new:
            self.check_writable()
        if shared and self._parts.are_in(state):
            problem = "" if self._node.is_chief else self._writer.problem()
            found = combine(SAVE, problem and f"{self._node.name} on {self._node.host}: {problem}")
            self._lost = "; ".join(filter(None, found))

    def _complete(
        self,
        local: str,
        shared: bool,
        place: Place,
        fields: Mapping[str, Any],
        beside: Callable[[str], None] | None,
    ) -> Callable[[], Callable[[], SavedCheckpoint]] | None:
        """Write what belongs to a state to its local directory; return what describes that, and keeps copies.

        That returns what makes a checkpoint of it. `fields` are those of its record that do not depend on the rows.
        Only the chief does it.
        """
        if not self._node.is_chief:
            return None
        if beside is not None:
            beside(local)
        if self._record is not None:
            self._record.write(f"{local}/{FILE}", checkpoint=place._asdict())
        record, report = {"batch": place.batch, **fields}, None
        if self._position is not None:
            record = {**self._position.describe(place.batch), **fields}
            report = self._position.saved_here(self._store.directory)
            self._position.write(local, *place)

        def describe() -> Callable[[], SavedCheckpoint]:
            described = self._store.describe(local, place.step, place.epoch, **record)
            if self._writer.copies is not None:
                writers = (len(roles()[1]) if shared else 1) if fields["name"] else 0
                described = self._writer.copies.numbered(described, self._newest_number)
                self._writer.copies.keep(replace(described, writers=writers), local)
            return partial(add, described)

        def add(described: SavedCheckpoint) -> SavedCheckpoint:
            saved = self._store.add_described(local, described, has_parts=bool(fields["name"]))
            if report is not None:
                report(saved)
            return saved

        return describe

    def _newest_number(self) -> int:
        with suppress(CheckpointError):
            if newest := self._store.latest():
                return newest.number
        return -1

    def _require_seen(self, written: SavedCheckpoint | None) -> None:
        """Raise on all workers if one does not see what the chief has written; a restart may place the chief there."""
        name = combine(SAVE, written.name if written else "")[0]
        if not name:  # there are copies alone: the next one shows it
            return
        sees = any(each.name == name for each in self._store.complete())
        if blind := list(filter(None, combine(SAVE, "" if sees else f"{self._node.name} on {self._node.host}"))):
            raise not_seen(self._store.directory, ", ".join(blind), "the chief's checkpoint")
        self._is_seen = True

    def check_writable(self) -> None:
        """Raise if the directory can't be written, unless training goes on from a copy."""
        try:
            self._store.check_writable()
        except CheckpointError as error:
            if self._writer.copies is None or self._writer.copies.newest() is None:
                raise
            _log.warning("training goes on from a copy (%s)", error)

    def go_on_from(self, found: Source | None) -> None:
        """Note that the training goes on from a checkpoint; have the directory get it, if that lacks it."""
        if self._writer.copies is None:
            return
        store, saved = found or (None, None)
        self._writer.copies.restored(saved)
        if self._node.is_chief and store is not None and saved is not None and store is not self._store:
            _log.info("%s is restored from a copy", saved.name)
            what, bring = f"{saved.name}, of which there are copies,", partial(self._bring, store, saved)
            self._writer.write(bring, what, self._policy.max_failures, at_once=self._policy.wait)

    def _bring(self, store: CheckpointStore, saved: SavedCheckpoint) -> None:
        """Add a checkpoint that is read from copies to the directory, if it is not there."""
        if any(each.name == saved.name for each in self._store.complete()):
            return
        with TemporaryDirectory(prefix="tfos-", dir=self._node.scratch or None) as local:
            if not store.fetch(saved, local):
                raise CheckpointError(f"the copies of {saved.name} are not as they were written")
            if names := store.part_names(saved):
                parts = ((each, store.read_part(saved, each)) for each in names)
                self._store.add_parts(saved.name, self._node.name, parts)
            self._store.add_described(local, replace(saved, writers=0), has_parts=bool(names))

    def settle(self) -> None:
        """Wait until all that the program has saved in the directory is written; raise if too much could not be."""
        self._writer.settle(self._policy.max_failures)

    def clear(self) -> None:
        """Remove all checkpoints, and their copies; only the chief removes them."""
        self.settle()
        self._writer.forget()
        if self._node.is_chief:
            self._store.clear()
            if self._writer.copies is not None:
                self._writer.copies.clear()

    def close(self) -> None:
        """Wait until all that the program has saved in the directory is written; raise if the last one was not."""
        self._writer.wait()
        self._writer.require_last()

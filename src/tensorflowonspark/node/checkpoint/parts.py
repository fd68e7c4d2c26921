"""Parts of a checkpoint: state that is divided among the workers, of which each writes and reads its own.

The chief names the checkpoint; each worker writes its parts under that name, and a list of them. When all have, the
chief completes the checkpoint. A restart has all parts to choose from, on any number of workers.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from tensorflowonspark.errors import CheckpointError
from tensorflowonspark.keras.jax.training_state import JaxState, is_state
from tensorflowonspark.keras.workers import combine, roles
from tensorflowonspark.node.checkpoint.state import is_shared
from tensorflowonspark.node.checkpoint.store import CheckpointStore, SavedCheckpoint

if TYPE_CHECKING:
    import tensorflow as tf

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.2  # between looks for what other workers write
_PATIENCE_SECONDS = 600.0  # for that, once this worker has written as much
SAVE = "the checkpoint's save"  # the call in which workers agree, for errors


def divided_objects(state: "tf.train.Checkpoint") -> list[Any]:
    """Return the objects in a state that are divided among the workers, as a ``ShardedEmbedding`` is.

    They have the methods ``shard_parts()``, which yields names and contents of this worker's parts, and
    ``load_shard_parts(names, read)``.

    Two of one name are a `CheckpointError`.
    """
    if is_state(state):
        return [JaxState.of(state)]
    import tensorflow as tf

    found = [each for each in tf.train.TrackableView(state).descendants() if hasattr(each, "load_shard_parts")]
    names = [each.name for each in found]
    if len(set(names)) < len(names):
        double = next(name for name in names if names.count(name) > 1)
        raise CheckpointError(f"two layers with parts of a checkpoint are named {double!r}: give each its own name")
    return found


def not_seen(directory: str, who: str, what: str) -> CheckpointError:
    """Return the error of workers that have different directories of one name."""
    return CheckpointError(
        f"{who} does not see {what} in {directory}: hosts have different directories of that name. Give one that all "
        "nodes see, as hdfs://..., s3://... or a mount that they share"
    )


def _divided_now(state: "tf.train.Checkpoint") -> list[Any]:
    """Return the objects in a state of which this process has a part alone."""
    return [each for each in divided_objects(state) if getattr(each, "is_divided", True)]


Parts = Iterator[tuple[str, bytes]]  # their names and contents


class StateParts:
    """The parts of one worker in the checkpoints of a training.

    `keep` gets the name of each checkpoint and the parts before they are written, and returns them.
    """

    def __init__(
        self, store: CheckpointStore, node: str, keep: Callable[[str, Parts], Parts] = lambda _, parts: parts
    ) -> None:
        self._store = store
        self._node = node
        self._keep = keep

    def are_in(self, state: "tf.train.Checkpoint") -> bool:
        """Return whether a state has parts."""
        return bool(_divided_now(state))

    def prepare(self, state: "tf.train.Checkpoint", step: int) -> tuple[str, Parts]:
        """Return the name of a new checkpoint, "" if nothing is divided, and this worker's parts of it.

        Each part is copied from the state when it is taken.
        """
        divided = _divided_now(state)
        if not divided:
            return "", iter(())
        name = self._store.new_name(step)
        if is_shared(state):
            name = combine(SAVE, name)[0]
        return name, chain.from_iterable(each.shard_parts() for each in divided)

    def write(self, state: "tf.train.Checkpoint", step: int) -> tuple[str, CheckpointError | None]:
        """Write this worker's parts of a new checkpoint; return its name, or "" if nothing is divided, when all have.

        If one worker can't, all return the error beside it. Workers that see different directories raise one.
        """
        name, parts = self.prepare(state, step)
        if not name:
            return "", None
        shared = is_shared(state)
        problem: CheckpointError | None = None
        try:
            self.add(name, parts)
        except CheckpointError as error:
            problem = error
        if not shared:
            return name, problem
        wrote = combine(SAVE, self._node if problem is None else "")
        if not all(wrote):
            of_others = f"another worker could not write its parts of {self._store.directory}/{name}"
            return name, problem or CheckpointError(of_others)
        missing = combine(SAVE, self._store.unlisted(name, set(wrote)))[0]
        if missing:
            raise not_seen(self._store.directory, "the chief", f"what {', '.join(sorted(missing))} has written")
        return name, None

    def add(self, name: str, parts: Iterable[tuple[str, bytes]]) -> None:
        """Write this worker's parts of a checkpoint."""
        self._store.add_parts(name, self._node, self._keep(name, iter(parts)))

    def wait_for_all(self, name: str, lost: Callable[[], str]) -> None:
        """Wait until all workers' parts of a checkpoint are there.

        If `lost` says that some are not to come, that is a `CheckpointError`; so it is if they take very long, since
        another worker says that it could not write them with the next checkpoint alone, for which it may wait.
        """
        workers, until = set(roles()[1]), time.monotonic() + _PATIENCE_SECONDS
        while missing := self._store.unlisted(name, workers):
            if problem := lost():
                raise CheckpointError(problem)
            if time.monotonic() > until:
                who = f"{', '.join(sorted(missing))} has not written its parts of {self._store.directory}/{name}"
                raise CheckpointError(f"{who} {_PATIENCE_SECONDS:g} s after this worker")
            _log.debug("%s waits for the parts of %s", name, missing)
            time.sleep(_POLL_SECONDS)


def read_parts(store: CheckpointStore, saved: SavedCheckpoint, divided: Sequence[Any]) -> bool:
    """Have divided objects take their parts from a checkpoint; return whether none was missing or damaged.

    An object that does not fit the checkpoint is a `CheckpointError`.
    """
    names = store.part_names(saved)
    damage: list[CheckpointError] = []

    def contents(name: str) -> bytes:
        try:
            return store.read_part(saved, name)
        except CheckpointError as error:
            if error.__cause__ is None or isinstance(error.__cause__, FileNotFoundError):  # else the store has failed
                damage.append(error)
            raise

    try:
        for each in divided:
            each.load_shard_parts(names, contents)
    except CheckpointError as error:
        if error not in damage:
            raise
        store.skip(saved.name, str(error))
        return False
    return True

"""Checkpoints of a training and its position in the rows (`Context.checkpoint`).

A checkpoint is TensorFlow's own (``tf.train.Checkpoint``). It is written to this machine first, and then copied, so
that no file system needs an adapter in TensorFlow; `saved` says how it becomes visible as a whole.

Who writes and who reads: all workers that train together call `save` at the same step, since TensorFlow reads some
variables from all of them, and the chief's is kept. All of them restore the one that the chief has chosen, each from
the directory, and none goes on before all have it: so none that is read becomes surplus.
"""

import atexit
from contextlib import ExitStack
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tensorflowonspark.errors import CheckpointError, SpecError
from tensorflowonspark.messages import CheckpointSaved
from tensorflowonspark.node.checkpoint.mirror import Mirror
from tensorflowonspark.node.checkpoint.store import CheckpointStore, SavedCheckpoint
from tensorflowonspark.node.driver_link import Link
from tensorflowonspark.node.feed.feeds import Feeds

if TYPE_CHECKING:
    import tensorflow as tf

    from tensorflowonspark.node.checkpoint.store import SavedCheckpoint

__all__ = ["Checkpoints", "ResumePosition"]

_PREFIX = "state"
_NONE = "!"  # before the reason why the chief finds none, in place of a name
_SAID = 400  # characters of TensorFlow's reason


class Checkpoints:
    """The checkpoints of one training, in one directory.

    Parameters
    ----------
    directory : str
        A path, or a URL of any file system that fsspec knows.
    keep : int
        How many complete ones stay; older ones are removed.
    scratch : str
        A directory of this machine for the files on their way.
    is_chief : bool
        Whether this node's are those that are kept.
    node : str
        This node's name in TensorFlow, as in ``worker:0``.
    position : Position, optional
        The program's place in its feeds, where it has any.
    """

    def __init__(
        self,
        directory: str,
        keep: int,
        scratch: str,
        is_chief: bool,
        node: str,
        position: "ResumePosition | None" = None,
    ) -> None:
        if keep < 1:
            raise SpecError(f"keep={keep}: at least one checkpoint must stay")
        self.directory = directory
        self._shelf = CheckpointStore(directory, keep)
        self._scratch = scratch or None
        self._is_chief = is_chief
        self._node = node
        self._position = position
        self._mirror: Mirror | None = None

    def save(self, state: "tf.train.Checkpoint", step: Any, *, epoch: int = 0, batch: int = 0) -> None:
        """Write the program's state; when this returns, a restart finds it.

        Workers that train together must all call it at the same step.

        Parameters
        ----------
        state : tf.train.Checkpoint
            What to write. (Of a Keras 3 model it has the weights, but not the seeds of layers like ``Dropout``; the
            `callback` has them too.)
        step : int or scalar variable
            How many steps were taken, from 0.
        epoch : int
            How many epochs were complete, for those who count them.
        batch : int
            How many steps of the next one were taken.

        Raises
        ------
        CheckpointError
            If the directory can't be written.
        """
        if int(step) < 0:
            raise SpecError(f"step={int(step)}: expected how many steps were taken")
        with TemporaryDirectory(prefix="tfos-", dir=self._scratch) as local:
            state.write(f"{local}/{_PREFIX}", self._options())
            if self._is_chief:
                place = self._position.noted(batch) if self._position else {"batch": batch}
                self._shelf.add(local, int(step), epoch, **place)
                if self._position:
                    self._position.tell()

    def restore(self, state: "tf.train.Checkpoint") -> int:
        """Give the program the newest complete state; return the step after which it was written, 0 if there is none.

        Variables that are made later get their values when they are made. Workers that train together must all call it,
        before the first of them saves.

        Raises
        ------
        CheckpointError
            If it can't be read, or doesn't fit `state`.
        """
        saved = self.resume(state)
        return saved.step if saved else 0

    def resume(self, state: "tf.train.Checkpoint", *, whole: bool = False) -> SavedCheckpoint | None:
        """Do what `restore` does; return all that is known of the checkpoint.

        Parameters
        ----------
        state : tf.train.Checkpoint
            What gets the values.
        whole : bool
            Whether all variables are made by now, so that a value that none of them takes is an error.
        """
        strategy = _strategy(state)
        with ExitStack() as stack:
            local = stack.enter_context(TemporaryDirectory(prefix="tfos-", dir=self._scratch))
            saved = self._fetch_newest(strategy, local)
            if saved and self._read(saved, state, local, whole):
                # TensorFlow reads the values of variables that are not there yet when they are made.
                atexit.register(stack.pop_all().close)
        return saved

    def go_on(self, saved: SavedCheckpoint) -> tuple[int, int]:
        """Take up the rows where a checkpoint was written; return its epoch, and the step in it."""
        return self._position.find(saved) if self._position else (saved.epoch, 0)

    def latest(self) -> SavedCheckpoint | None:
        """Return the newest complete checkpoint, if there is any: its ``step`` and ``epoch``."""
        return self._shelf.latest()

    def clear(self) -> None:
        """Remove all checkpoints, so that the next training begins anew; the chief does."""
        if self._is_chief:
            self._shelf.clear()

    def callback(self, every: int | None = None) -> Any:
        """Return a Keras callback that goes on from the newest complete checkpoint, and writes one after each epoch.

        It restores weights, optimizer, seeds and epoch when the program's first ``fit`` begins, on all workers.

        Parameters
        ----------
        every : int, optional
            After how many steps one is written too. Training that goes on from such a one takes the rest of the epoch's
            steps; with another number of workers, whose steps would be others, it begins the epoch again.

        Returns
        -------
        keras.callbacks.Callback
            One of Keras 3, or of ``tf_keras`` where ``TF_USE_LEGACY_KERAS`` says so.

        Raises
        ------
        CheckpointError
            If the directory can't be written.
        """
        from tensorflowonspark.keras.resuming import resuming

        if every is not None and every < 1:
            raise SpecError(f"every={every}: expected a number of steps, or None for epochs alone")
        if self._is_chief:
            self._shelf.try_writing()
        return resuming(self, every)

    def path(self, name: str) -> str:
        """Return where on this machine to write a file that is to be in the directory too.

        For what can write only here, as Keras's ``ModelCheckpoint`` and ``BackupAndRestore``. What an earlier run wrote
        under this name is there again.

        Parameters
        ----------
        name : str
            The name of a file, which may be a template as in ``"{epoch}.keras"``; or of a directory, which becomes one
            of checkpoints (the newest complete one comes back).

        See Also
        --------
        mirror : copies what was written; the `callback` does so too.
        """
        if self._mirror is None:
            self._mirror = Mirror(self.directory, self._scratch)
        return self._mirror.path(name)

    def mirror(self) -> None:
        """Copy what was written at `path` since the last time, and remove what is gone; the chief does.

        The `callback` does it after each epoch and at the end of training: put it behind the callbacks that write.
        """
        if self._mirror is not None and self._is_chief:
            self._mirror.update()

    def _options(self) -> "tf.train.CheckpointOptions":
        """Return that this process writes and reads all files, not the parameter servers on their hosts."""
        import tensorflow as tf

        job, index = self._node.split(":")
        own = f"/job:{job}/replica:0/task:{index}/device:CPU:0"
        known = [device.name for device in tf.config.list_logical_devices("CPU")]
        return tf.train.CheckpointOptions(experimental_io_device=own if own in known else None)

    def _fetch_newest(self, strategy: Any, local: str) -> SavedCheckpoint | None:
        """Copy the newest complete checkpoint here; on workers that train together, the one that the chief finds."""
        if strategy is None:
            return self._usable(self._shelf.fetch_newest(local))
        from tensorflowonspark.keras.collectives import any_of, broadcast_text

        while True:
            found, problem = self._chiefs_choice() if self._is_chief else (None, None)
            name = broadcast_text(strategy, self._is_chief, _NONE if problem else found.name if found else "")
            if name == _NONE:
                raise problem or CheckpointError(f"the chief can read no checkpoint in {self.directory}")
            if not name:
                return None
            found = found or self._shelf.find(name)
            read = found is not None and self._shelf.fetch(found, local)
            if not read and name not in self._shelf.damaged:
                raise CheckpointError(
                    f"the chief goes on from {self.directory}/{name}, and {self._node} finds no such checkpoint: give "
                    "a directory that all nodes see, and each training one of its own"
                )
            if not any_of(strategy, not read):  # and so all have it
                return found
            self._shelf.pass_over(name, "another worker could not read it")

    def _chiefs_choice(self) -> tuple[SavedCheckpoint | None, CheckpointError | None]:
        """Return the newest checkpoint that counts, or why none does: all workers are to learn of either."""
        try:
            return self._usable(self._shelf.newest()), None
        except CheckpointError as error:
            return None, error

    def _usable(self, saved: SavedCheckpoint | None) -> SavedCheckpoint | None:
        """Return a checkpoint; refuse one whose feed's rows don't come again, as those after it are damaged."""
        if saved and self._position and self._shelf.damaged and not self._position.comes_again(saved):
            raise CheckpointError(
                f"damaged in {self.directory}: {', '.join(self._shelf.damaged)}; {saved.name}, the one before, was "
                f"written in feed {saved.feed}, whose rows are not fed again in this restart: run the whole training "
                "again, which goes on from it"
            )
        return saved

    def _read(self, saved: SavedCheckpoint, state: "tf.train.Checkpoint", local: str, whole: bool) -> bool:
        """Give `state` what was read; return whether there are values that nothing has taken yet."""
        import tensorflow as tf

        try:
            status = state.read(f"{local}/{_PREFIX}", self._options())
            status.assert_existing_objects_matched()
            if whole:
                status.assert_consumed()
        except (AssertionError, ValueError, tf.errors.OpError) as error:
            if isinstance(error, tf.errors.DataLossError) or "corrupt" in str(error):  # written without checksums
                raise CheckpointError(
                    f"{self.directory}/{saved.name} is damaged: remove it, and training goes on from the one before "
                    f"({_brief(error)})"
                ) from error
            raise CheckpointError(
                f"{self.directory}/{saved.name} does not fit the program's model: train the one that wrote it, give "
                f"another directory, or remove this one to begin anew ({_brief(error)})"
            ) from error
        try:
            status.assert_consumed()
        except AssertionError:
            return True
        return False


def _brief(error: BaseException) -> str:
    """Return the beginning of TensorFlow's reason, which may name each variable, in lines of its own."""
    return " ".join(str(error).split())[:_SAID]


def _strategy(state: "tf.train.Checkpoint") -> Any:
    """Return the strategy with which workers train these variables together, if they do."""
    import tensorflow as tf

    for each in [None, *tf.train.TrackableView(state).descendants()]:
        # A variable of Keras 3 has one of TensorFlow as its value.
        variable = each if isinstance(each, tf.Variable) else getattr(each, "value", None)
        strategy = tf.distribute.get_strategy() if each is None else getattr(variable, "distribute_strategy", None)
        if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            return strategy
    return None


class ResumePosition:
    """The place of a node's program in its feeds.

    Parameters
    ----------
    feeds : Feeds
        The node's.
    link : Link
        To the driver.
    workers : int
        How many nodes train.
    """

    def __init__(self, feeds: Feeds, link: Link, workers: int) -> None:
        self._feeds = feeds
        self._link = link
        self._workers = workers

    def noted(self, batch: int) -> dict[str, int]:
        """Return what a checkpoint says of the place, so many steps into an epoch."""
        return {"batch": batch, "feed": self._feeds.current, "workers": self._workers}

    def tell(self) -> None:
        """Say that a checkpoint is complete: what was fed before, a program that begins again does not need."""
        self._link.send(CheckpointSaved(self._feeds.current))

    def comes_again(self, saved: "SavedCheckpoint") -> bool:
        """Return whether the rows that came after a checkpoint are fed (again) to the program that begins now."""
        return not self._feeds.first or saved.feed >= self._feeds.first

    def find(self, saved: "SavedCheckpoint") -> tuple[int, int]:
        """Go to where a checkpoint was written; return its epoch, and the step in it.

        The rows of a step depend on how many workers there are: with another number, or without rows that can be taken
        up in their midst, the epoch begins again.
        """
        if saved.feed < self._feeds.current:
            return 0, 0  # its feed was complete
        same = saved.feed == self._feeds.current and saved.workers in (0, self._workers)
        batch = saved.batch if same else 0
        if self._feeds.begin_at(saved.epoch, batch):
            return saved.epoch, batch
        return saved.epoch, 0

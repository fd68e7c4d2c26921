"""Checkpoints of a training, and its position in the rows.

A checkpoint is TensorFlow's own (``tf.train.Checkpoint``), or on JAX a file of arrays. It is written to this machine
first, and then copied, so that no file system needs an adapter in TensorFlow; `store` makes it visible as a whole.

All workers that train together call `save` at the same step, since TensorFlow reads some variables from all of them;
the chief's files are kept. All workers restore the checkpoint that the chief has chosen, each from the directory, and
continue only when all have read it, so that none is removed while it is read. `parts` writes and reads what is divided
among the workers.
"""

import atexit
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tensorflowonspark.errors import CheckpointError, SpecError
from tensorflowonspark.keras.workers import combine
from tensorflowonspark.node.checkpoint.mirror import Mirror
from tensorflowonspark.node.checkpoint.parts import divided_objects
from tensorflowonspark.node.checkpoint.position import ResumePosition
from tensorflowonspark.node.checkpoint.restoring import Restoring
from tensorflowonspark.node.checkpoint.saving import Place, Saving, SavingNode
from tensorflowonspark.node.checkpoint.state import is_shared, read_state
from tensorflowonspark.node.checkpoint.store import CheckpointStore, SavedCheckpoint, Source
from tensorflowonspark.node.checkpoint.writer import SavePolicy, Writer, Writers
from tensorflowonspark.node.meter import TrainingMeter
from tensorflowonspark.node.run_record import RunRecord

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

__all__ = ["Checkpoints"]

_EVALUATED = "the checkpoint's is_over"


class Checkpoints:
    """The checkpoints of one training, in one directory.

    Parameters
    ----------
    directory : str
        A path, or a URL of any file system that fsspec knows.
    policy : SavePolicy
        Which checkpoints are kept, and whether the program waits for each.
    node : SavingNode
        The node that this is.
    position : ResumePosition, optional
        The program's position in its feeds.
    writer : Writer, optional
        The program's writer for this directory.
    meter : TrainingMeter, optional
        Measures the time in which the program saves.
    record : RunRecord, optional
        Writes the manifest of each checkpoint.

    Examples
    --------
    A custom loop that resumes at the step of the newest complete checkpoint:

    >>> import tensorflow as tf
    >>> def train(steps):
    ...     weight = tf.Variable(0.0)
    ...     checkpoint = ctx.checkpoint(f"{directory}/loop")
    ...     state = tf.train.Checkpoint(weight=weight)
    ...     first = checkpoint.restore(state)
    ...     for step in range(first, steps):
    ...         weight.assign_add(1.0)
    ...         checkpoint.save(state, step + 1)
    ...     return first, float(weight)
    >>> train(steps=3), train(steps=5)
    ((0, 3.0), (3, 5.0))
    """

    def __init__(
        self,
        directory: str,
        policy: SavePolicy,
        node: SavingNode,
        position: ResumePosition | None = None,
        *,
        writer: Writer | None = None,
        meter: TrainingMeter | None = None,
        record: RunRecord | None = None,
    ) -> None:
        self.directory = directory
        self._best = policy.best
        self._node = node
        self._position = position
        self._evaluator = position.evaluator if position else None
        awaits = self._evaluator.awaits if self._evaluator else lambda: False
        self._store = CheckpointStore(directory, policy.keep, awaits)
        writer = writer or Writers().of(directory)
        self._saving = Saving(self._store, policy, node, writer, position, record)
        self._restoring = Restoring(self._store, writer.copies, node, position)
        self._meter = meter
        self._record = record
        self._mirror: Mirror | None = None
        self._is_shared = False  # the state that was written or restored last, among workers that train together

    def save(
        self,
        state: "tf.train.Checkpoint | keras.Model",
        step: Any,
        *,
        epoch: int = 0,
        batch: int = 0,
        metrics: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the program's state; return when it is copied in memory, or with `wait` when a restart finds it.

        A restart finds the last checkpoint that was complete in the directory. One at a time is written there, so this
        waits for the one before; the first one of workers that train together is complete when it returns. What reads
        checkpoints in this program (`restore`, `latest`, `best`) waits for those that it has saved, and so do its end
        and its request for the next feed.

        Workers that train together must all call it at the same step.

        Parameters
        ----------
        state : tf.train.Checkpoint or keras.Model
            The state to write. (Of a Keras 3 model it holds the weights, but not the seeds of layers like ``Dropout``,
            which the `callback` includes.) On JAX the model itself, with its optimizer and all seeds.
        step : int or scalar variable
            Number of steps taken, from 0.
        epoch : int
            Number of complete epochs, for programs that count them.
        batch : int
            Number of steps taken in the next epoch.
        metrics : mapping, optional
            The metrics by name, of which the one in ``ctx.checkpoint(..., best="val_loss")`` says which checkpoint is
            best.

        Raises
        ------
        CheckpointError
            If the directory can't be written (without `wait`: at the first call, or if more than `max_failures`
            checkpoints in a row could not), or the position in the rows can't be resumed: within the first epoch of
            ``cluster.train(..., start="first_rows")``, whose rows come in the order of their arrival.
        SpecError
            If `step` is negative, or `metrics` lacks the one that says which checkpoint is best.

        Examples
        --------
        >>> import tensorflow as tf
        >>> checkpoint = ctx.checkpoint(f"{directory}/saved")
        >>> checkpoint.save(tf.train.Checkpoint(weight=tf.Variable(1.0)), step=10)
        >>> checkpoint.latest().step
        10
        """
        self._save(state, step, epoch, batch, self._best.fields(metrics))

    def _save(
        self,
        state: Any,
        step: Any,
        epoch: int,
        batch: int,
        measured: Mapping[str, Any],
        beside: Callable[[str], None] | None = None,
    ) -> None:
        """Write the program's state; the chief also what `beside` writes to the local directory that it is given.

        `measured` is what the record says of the metric.
        """
        if int(step) < 0:
            raise SpecError(f"step={int(step)}: expected the number of steps taken")
        if self._position:
            self._position.require_resumable()
        with nullcontext() if self._meter is None else self._meter.saving(int(step)):
            self._is_shared = is_shared(state)
            self._saving.save(state, self._is_shared, Place(int(step), epoch, batch), measured, beside)

    def restore(self, state: "tf.train.Checkpoint | keras.Model", *, best: bool = False) -> int:
        """Restore the newest complete checkpoint, or the best one, and return its step.

        Variables that are created later receive their values then. Workers that train together must all call it, before
        the first of them saves.

        Parameters
        ----------
        state : tf.train.Checkpoint or keras.Model
            The state to restore; on JAX the model, which must be built.
        best : bool
            Whether to restore the `best` one, to apply or to export it. The position in the rows stays as it is.

        Returns
        -------
        int
            The step after which the checkpoint was written; 0 if none exists.

        Raises
        ------
        CheckpointError
            If the checkpoint can't be read, doesn't fit `state`, or there is no best one.

        Examples
        --------
        >>> import tensorflow as tf
        >>> ctx.checkpoint(f"{directory}/empty").restore(tf.train.Checkpoint(weight=tf.Variable(0.0)))
        0
        """
        saved = self._restore(state, best=best)
        if saved and self._position and not best:
            self._position.require_fed(saved)
        return saved.step if saved else 0

    def _restore(
        self,
        state: Any,
        *,
        is_built: bool = False,
        beside: Callable[[str, str], None] | None = None,
        best: bool = False,
    ) -> SavedCheckpoint | None:
        """Restore the newest complete checkpoint, or the best one, and return its record.

        Parameters
        ----------
        state : tf.train.Checkpoint
            The state to restore.
        is_built : bool
            Whether all variables have been created, so that a value without a variable is an error.
        beside : callable, optional
            Reads what `_save` was given to write, from the checkpoint's local directory; its path is for errors.
        """
        with ExitStack() as stack:
            local = stack.enter_context(TemporaryDirectory(prefix="tfos-", dir=self._node.scratch or None))
            self._saving.settle()
            if self._evaluator:
                self._evaluator.note_own_loop()
            choose = self._best_one if best else self._restoring.newest
            self._is_shared = is_shared(state)
            found = self._restoring.fetch(self._is_shared, local, divided_objects(state), choose)
            saved = found[1] if found else None
            source = f"{self.directory}/{saved.name}" if saved else ""
            if saved and read_state(state, local, self._node.name, source, is_built=is_built):
                # TensorFlow reads the values of variables that don't exist yet when they are created.
                atexit.register(stack.pop_all().close)
            if saved and beside is not None:
                beside(local, source)
            if saved and self._position and not best:
                self._position.read(local, saved)
            if saved and self._meter is not None and not best:
                self._meter.restored(saved.step)
            if saved and self._record is not None and not best:
                self._record.compare(local, saved.step)
        if not best:
            self._saving.go_on_from(found)
        return saved

    def _resume_at(self, saved: SavedCheckpoint) -> tuple[int, int] | None:
        """Resume the rows where a checkpoint was written; return its epoch and the step in it, or None if none is left.

        None is left of a feed that was complete before the checkpoint's.
        """
        return self._position.resume(saved) if self._position else (saved.epoch, 0)

    def _in_first_pass(self) -> bool:
        """Return whether the program is in the first epoch of a feed, and takes the rows as they arrive."""
        return self._position is not None and self._position.in_first_pass

    def latest(self) -> SavedCheckpoint | None:
        """Return the newest complete checkpoint.

        Returns
        -------
        SavedCheckpoint or None
            Its ``step``, ``epoch`` and other fields; None if no checkpoint exists.

        Raises
        ------
        CheckpointError
            If the directory can't be read.

        Examples
        --------
        >>> ctx.checkpoint(f"{directory}/none").latest()
        """
        self._saving.settle()
        return self._store.latest()

    def best(self) -> SavedCheckpoint | None:
        """Return the best complete checkpoint, by the metric that ``ctx.checkpoint(..., best="val_loss")`` names.

        Returns
        -------
        SavedCheckpoint or None
            Its ``value``, ``epoch``, ``step``, ``name`` and other fields; None if none has a value. Without a name the
            metric is that of the newest checkpoint.

        Raises
        ------
        CheckpointError
            If the directory can't be read.

        Examples
        --------
        >>> import tensorflow as tf
        >>> weight = tf.Variable(0.0)
        >>> state = tf.train.Checkpoint(weight=weight)
        >>> checkpoint = ctx.checkpoint(f"{directory}/best", keep=2, best="loss")
        >>> for step, loss in enumerate([0.9, 0.3, 0.5, 0.7]):
        ...     _ = weight.assign(loss)
        ...     checkpoint.save(state, step, metrics={"loss": loss})
        >>> checkpoint.best().step, checkpoint.best().value, checkpoint.latest().step
        (1, 0.3, 3)
        >>> checkpoint.restore(state, best=True), float(weight) < 0.31
        (1, True)
        """
        self._saving.settle()
        self._wait_for_evaluator()
        return self._store.best(self._best.name or "")

    def _wait_for_evaluator(self) -> None:
        """Wait until the evaluator is done with the newest checkpoint of an epoch, if that has no value yet."""
        if self._evaluator and self._evaluator.exists:
            waiting = self._store.unevaluated(self._store.complete())
            if waiting and waiting[-1].value is None:
                self._evaluator.wait_for(waiting[-1].name)

    def is_over(self) -> bool:
        """Return whether the evaluator ends the training (`Context.evaluate_checkpoints`); for loops, after each epoch.

        All workers that train together get the same answer, if each asks after it has saved. The `callback` asks by
        itself, and ends ``fit``.

        Returns
        -------
        bool
            False without an evaluator.

        Examples
        --------
        >>> import tensorflow as tf
        >>> state, checkpoint = tf.train.Checkpoint(), ctx.checkpoint(f"{directory}/over")
        >>> for epoch in range(3):
        ...     checkpoint.save(state, step=(epoch + 1) * 100, epoch=epoch + 1)
        ...     if checkpoint.is_over():
        ...         break
        """
        return self._evaluator is not None and self._evaluator.exists and self._do_all_stop(self._evaluator.stops())

    def _was_ended(self, saved: SavedCheckpoint) -> bool:
        """Return whether the evaluator ended the training of a checkpoint, and still would by its present criterion."""
        if not (self._evaluator and self._evaluator.exists and self._do_all_stop(saved.ends)):
            return False
        self._evaluator.wait_for_start()
        return self._do_all_stop(self._evaluator.stops())

    def _do_all_stop(self, stops: bool) -> bool:
        return bool(combine(_EVALUATED, stops, any) if self._is_shared else stops)

    def is_due(self) -> bool:
        """Return whether the program is to save now, since a host goes; for loops, which ask after each step.

        All workers that train together get the same answer after the same step, if each asks after each. The restart
        that follows begins there, without the host (`Context.preemption`). Where nodes are started again alone
        (`RestartPolicy.scope`), the chief alone is to save, if its own host goes. The `callback` asks by itself.

        Returns
        -------
        bool
            False after all other steps, in the first epoch of ``cluster.train(..., start="first_rows")``, in which none
            can be saved, and with parameter servers on all but the chief.

        Examples
        --------
        >>> import tensorflow as tf
        >>> state, checkpoint = tf.train.Checkpoint(), ctx.checkpoint(f"{directory}/due")
        >>> for step in range(3):
        ...     if checkpoint.is_due():
        ...         checkpoint.save(state, step + 1)
        """
        return self._position is not None and self._position.is_save_due() and not self._in_first_pass()

    def clear(self) -> None:
        """Remove all checkpoints, so that the next training starts from the beginning; only the chief removes them.

        Raises
        ------
        CheckpointError
            If the directory can't be written.

        Examples
        --------
        >>> ctx.checkpoint(f"{directory}/none").clear()
        """
        self._saving.clear()

    def close(self) -> None:
        """Wait until the last checkpoint is complete, as the end of a program does by itself; for others that read it.

        Raises
        ------
        CheckpointError
            If it could not be written.

        Examples
        --------
        >>> ctx.checkpoint(f"{directory}/none").close()
        """
        self._saving.close()

    def callback(self, every: int | None = None) -> Any:
        """Return a Keras callback that resumes from the newest complete checkpoint, and writes one after each epoch.

        It restores weights, optimizer, seeds and epoch when the program's first ``fit`` begins, on all workers; and the
        state of the other callbacks, Keras's own and those with the methods ``get_state`` and ``set_state``.

        Parameters
        ----------
        every : int, optional
            Number of steps after which a checkpoint is written within an epoch too. Training that resumes from it takes
            the rows of the epoch that are left, also with another number of workers.
            None is written within an epoch that takes the rows as they arrive (``start="first_rows"``). By default
            checkpoints are written after epochs only.

        Returns
        -------
        keras.callbacks.Callback
            Of Keras 3, or of ``tf_keras`` if ``TF_USE_LEGACY_KERAS`` is set.

        Raises
        ------
        CheckpointError
            If the directory can't be written.
        SpecError
            If `every` is below 1.

        Examples
        --------
        >>> import keras
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> checkpoint = ctx.checkpoint(f"{directory}/fit")
        >>> dataset = ctx.dataset(2, features="x", label="label")
        >>> _ = model.fit(dataset, epochs=2, callbacks=[checkpoint.callback()], verbose=0)
        >>> checkpoint.latest().epoch
        2
        """
        from tensorflowonspark.keras.resuming_callback import resuming

        if every is not None and every < 1:
            raise SpecError(f"every={every}: expected a number of steps, or None for epochs alone")
        if self._node.is_chief:
            self._saving.check_writable()
        return resuming(self, every)

    def path(self, name: str) -> str:
        """Return a local path for a file that `mirror`, or the `callback`, copies to the directory.

        For writers that need a local path, such as Keras's ``ModelCheckpoint`` and ``BackupAndRestore``. A file that an
        earlier run wrote under this name is fetched.

        Parameters
        ----------
        name : str
            Name of a file, which may be a template as in ``"{epoch}.keras"``; or of a directory, which is stored like a
            checkpoint (the newest complete one is fetched).

        Returns
        -------
        str
            A path of this machine.

        Raises
        ------
        SpecError
            If `name` contains a ``/``.

        Examples
        --------
        >>> from pathlib import Path
        >>> checkpoint = ctx.checkpoint(f"{directory}/files")
        >>> _ = Path(checkpoint.path("note.txt")).write_text("best so far")
        >>> checkpoint.mirror()
        >>> Path(directory, "files", "note.txt").read_text()
        'best so far'
        """
        if self._mirror is None:
            self._mirror = Mirror(self.directory, self._node.scratch or None)
        return self._mirror.path(name)

    def mirror(self) -> None:
        """Copy the files written at `path` since the last call, and remove deleted ones; only the chief copies.

        The `callback` does so after each epoch and at the end of training, after all other callbacks.

        Raises
        ------
        StorageError
            If a file can't be copied.

        Examples
        --------
        >>> ctx.checkpoint(f"{directory}/files").mirror()
        """
        if self._mirror is not None and self._node.is_chief:
            self._mirror.update()

    def _best_one(self) -> Source:
        """Return the best checkpoint; raise if there is none."""
        saved = self.best()
        if saved is None:
            name = self._best.name or "a metric"
            raise CheckpointError(
                f"no checkpoint in {self.directory} has a value of {name}: write them by ctx.checkpoint(directory, "
                'best="val_loss"), in fit with validation_data, or in a loop by save(..., metrics=...)'
            )
        return self._store, saved

"""What a node's program writes: exports, checkpoints, logs and metrics."""

from contextlib import ExitStack, nullcontext
from numbers import Integral
from tempfile import TemporaryDirectory
from typing import Any, Literal

from tensorflowonspark import storage
from tensorflowonspark.config import ClusterSpec, Job, Role
from tensorflowonspark.errors import ClusterError, SpecError
from tensorflowonspark.exports.formats import format_of
from tensorflowonspark.exports.versions import numbered
from tensorflowonspark.exports.writing import comparison, export, require_writable, write_as
from tensorflowonspark.keras.feed_tracking import row_counts
from tensorflowonspark.node.checkpoint.best import BestMetric
from tensorflowonspark.node.checkpoint.checkpoints import Checkpoints
from tensorflowonspark.node.checkpoint.copies import Copies
from tensorflowonspark.node.checkpoint.evaluator import Evaluator, EvaluatorNode, StopCriterion, evaluation_of
from tensorflowonspark.node.checkpoint.evaluator_state import EvaluatorState
from tensorflowonspark.node.checkpoint.position import ResumePosition
from tensorflowonspark.node.checkpoint.saving import SavingNode
from tensorflowonspark.node.checkpoint.writer import SavePolicy, Writers
from tensorflowonspark.node.driver_link import Link
from tensorflowonspark.node.feed.feeds import Feeds
from tensorflowonspark.node.meter import TrainingMeter
from tensorflowonspark.node.metric_values import check_metrics
from tensorflowonspark.node.run_record import RunRecord
from tensorflowonspark.node.save_points import Preemption
from tensorflowonspark.node.setup import NodeSetup
from tensorflowonspark.renamed import warn_renamed


class OutputAccess:
    """The methods of a `Context` that write; it has the attributes below."""

    role: Role
    spec: ClusterSpec
    host: str
    scratch: str
    working_dir: str
    default_fs: str
    _feeds: Feeds
    _link: Link
    _logs: ExitStack
    _meter: TrainingMeter
    _record: RunRecord
    _setup: NodeSetup
    _writers: Writers

    @property
    def is_chief(self) -> bool:
        """Whether this node has the chief's duties: the chief, or worker 0 in a cluster without one."""
        return self.role == self.spec.chief_role

    def report(self, *, epoch: int | None = None, **metrics: Any) -> None:
        """Report metrics of a loop of one's own, as its loss; ``fit`` needs no such call.

        The driver shows the chief's metrics as those of the training (`Cluster.metrics`, the dashboard, MLflow), and
        each node's with the node. Of more than a hundred reports within ten seconds, some that do not name their epoch
        are left out, but never the last one.

        Parameters
        ----------
        epoch : int, optional
            The number of the epoch that has ended, from 0; by default one more than that of the last report.
        **metrics : float
            The metrics by name: numbers, NumPy scalars, or tensors without dimensions. They may be NaN.

        Raises
        ------
        SpecError
            If a metric is not a number, or there is none.

        Examples
        --------
        >>> ctx.report(loss=0.5, accuracy=0.9)
        >>> ctx.report(epoch=7, loss=0.4)
        """
        if epoch is not None and (not isinstance(epoch, Integral) or isinstance(epoch, bool) or epoch < 0):
            raise SpecError(f"ctx.report: epoch={epoch!r}: expected a number from 0 on")
        self._meter.report(check_metrics(metrics), None if epoch is None else int(epoch))

    def export(
        self,
        model: Any,
        path: str,
        *,
        format: str | None = None,  # noqa: A002 - as in Keras
        version: "int | Literal['next'] | None" = None,
        check_rows: Any = None,
        tolerance: float = 1e-3,
    ) -> str:
        """Write a trained model to a directory or file, on any file system; the chief writes, the others return.

        Call it on all workers: to save a model that is not of Keras 3, TensorFlow reads some variables from all of
        them together.

        Parameters
        ----------
        model : keras.Model, tf_keras.Model or tf.Module
            The model.
        path : str
            A path, or a URL of any file system that fsspec knows. An existing file or directory is replaced, when the
            new model is complete.
        format : {"keras", "h5", "weights", "tf_saved_model", "onnx", "litert", "openvino"}, optional
            By default the one that the path ends in: ``.keras``, ``.h5``, ``.weights.h5``, ``.onnx`` or ``.tflite``
            (LiteRT), and without such an ending a SavedModel's directory. OpenVINO's is a directory, too. The last
            three are of models of Keras 3, on TensorFlow and JAX, and need the extra of their name.
        version : int or "next", optional
            With it the model is in a numbered directory of `path`, as TensorFlow Serving and Triton watch it:
            ``model/7``, or ``model/7/model.onnx`` of a format with a file. ``"next"`` is one more than the highest
            number there, also beside other trainings that export.
        check_rows : int or arrays, optional
            With how many of the first rows that the program took from its feed, or with which rows as the model takes
            them, the export is compared with the model before it can be seen, each format in its own runtime. By
            default 32 for ONNX, LiteRT and OpenVINO, which compute a model with operations of their own, and none for
            others.
        tolerance : float
            How much a result may differ, in parts of the largest value of its output.

        Returns
        -------
        str
            The path of what was written, with its number; on workers that do not write `path`.

        Raises
        ------
        SpecError
            If there is no such format, it can't express the model or gives other results, or the version exists.
        StorageError
            If the path can't be written.

        Examples
        --------
        >>> import keras
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> ctx.export(model, f"{directory}/model.keras") == f"{directory}/model.keras"
        True
        >>> keras.models.load_model(f"{directory}/model.keras").output_shape
        (None, 1)
        >>> ctx.export(model, f"{directory}/served", version="next").rpartition("/")[2]
        '1'
        """
        to = format_of(path, format, numbered=version is not None)
        require_writable(model, to, check_rows, is_numbered=version is not None)
        if not self.is_chief:
            export(model, path, False, self.scratch)
            return path
        compare = comparison(check_rows, to, row_counts.first_features, tolerance)
        write = write_as(to, compare, in_directory=version is not None)
        with numbered(path, version) if version is not None else nullcontext(path) as target:
            export(model, target, True, self.scratch, write, self._record.write)
        return target

    def checkpoint(
        self,
        directory: str,
        *,
        keep: int = 3,
        best: str | None = None,
        mode: Literal["auto", "min", "max"] = "auto",
        wait: bool = False,
        max_failures: int = 3,
        copies: int = 0,
    ) -> Checkpoints:
        """Return the checkpoints of a training, in a directory on any file system.

        Parameters
        ----------
        directory : str
            A path that all nodes see, or a URL of any file system that fsspec knows. Each training has its own.
        keep : int
            Number of complete checkpoints to keep: the newest ones.
        best : str, optional
            A metric by its name in Keras's logs, as in ``"val_loss"``: the `keep` best checkpoints by it are kept, and
            the newest, from which training resumes.
        mode : {"auto", "min", "max"}
            Whether less or more of the metric is better. By default Keras decides, which knows the loss and its own
            metrics.
        wait : bool
            Whether training waits until a checkpoint is complete in the directory. By default it waits until the state
            has been copied in memory, and goes on while that copy is written: a restart finds the last checkpoint that
            was complete. The end of the program waits for the last one, and so does what reads them.
        max_failures : int
            Without `wait`, how many checkpoints in a row may fail to be written: each is a warning, and the one before
            stays the newest. One more is an error, and so is the last one of a program.
        copies : int
            On how many hosts beside a worker's own a copy of the newest checkpoint is, on the executors' disks, over
            the restarts of the cluster. A restart takes it from there, if the directory has none that is newer, or
            can't be read. With copies `max_failures` holds also for checkpoints that training waits for.

        Returns
        -------
        Checkpoints
            Has a `callback` for Keras's ``fit``, and `restore` and `save` for custom loops.

        Raises
        ------
        SpecError
            If `keep` is below 1, `max_failures` or `copies` below 0, or `best` or `mode` can't be right; or if the
            program has called it for the directory with another number of `copies`.

        Examples
        --------
        >>> ctx.checkpoint(f"{directory}/checkpoints", keep=2).latest() is None
        True
        >>> ctx.checkpoint(f"{directory}/checkpoints", best="val_accuracy").best() is None
        True
        """
        policy = SavePolicy(keep, BestMetric(best, mode, evaluator=self.spec.evaluator), wait, max_failures, copies)
        evaluator = EvaluatorState(self._link, self.spec, self.role, directory)
        position = ResumePosition(self._feeds, self._link, len(self.spec.trainers), evaluator)
        node = SavingNode(str(self.role), self.is_chief, self.host, self.scratch)
        has_copies = copies and self.role in self.spec.trainers
        writer = self._writers.of(directory, Copies(self._link, self._setup, directory, copies) if has_copies else None)
        return Checkpoints(directory, policy, node, position, writer=writer, meter=self._meter, record=self._record)

    def evaluate_checkpoints(
        self,
        model: Any,
        data: Any,
        *,
        directory: str,
        monitor: str = "val_loss",
        mode: Literal["auto", "min", "max"] = "auto",
        patience: int | None = None,
        batch_size: int | None = None,
        log_dir: str | None = None,
    ) -> dict[str, list[float]]:
        """Evaluate each checkpoint of an epoch, in their order, while the others train; for the evaluator's program.

        It returns when the training has ended and its last checkpoint is evaluated. The values are those that ``fit``
        would have with ``validation_data``; they appear under their epoch in `Results.validation`, on the dashboard and
        in MLflow. Checkpoints that are not evaluated yet are kept, beside those that ``ctx.checkpoint(..., keep=3)``
        keeps: the best by the values, and the newest. A checkpoint is evaluated once, also over restarts and later
        runs.

        Parameters
        ----------
        model : keras.Model, tf_keras.Model or callable
            The model, compiled as that of the workers, or a function without parameters that returns it.
        data : tf.data.Dataset, keras.utils.PyDataset, tuple of arrays
            What ``fit`` takes as ``validation_data``, read anew for each epoch: ``ctx.read_parquet(path,
            cache=None).dataset(...)`` reads all rows of files.
        directory : str
            That of `checkpoint` on the workers.
        monitor : str
            The metric that says which checkpoints are best, unless `checkpoint` has a `best` of its own, and when the
            training ends.
        mode : {"auto", "min", "max"}
            As for `checkpoint`.
        patience : int, optional
            After how many epochs in which `monitor` has not become better the training ends: ``fit`` with the
            `Checkpoints.callback` after the epoch in which all workers have received that, a loop by
            `Checkpoints.is_over`. By default nothing ends it.
        batch_size : int, optional
            Rows of a step, for arrays.
        log_dir : str, optional
            The ``log_dir`` of Keras's ``TensorBoard`` on the chief: the values go where those of ``fit`` would be.

        Returns
        -------
        dict of str to list of float
            The values of each metric, one for each epoch, and as ``epoch`` the numbers of these, from 0.

        Raises
        ------
        ClusterError
            If this node is no evaluator.
        CheckpointError
            If this node does not see the training's checkpoints, they do not fit the model, or there is none at the
            end.
        SpecError
            If `monitor` is no metric of the model, or the data can't be read more than once.

        Examples
        --------
        In the function of a cluster with ``evaluator=True``::

            if ctx.job == "evaluator":
                ctx.evaluate_checkpoints(build, held_out, directory=args["directory"], patience=3)
                return
        """
        if self.role.job is not Job.EVALUATOR:
            has = "which ctx.job tells" if self.spec.evaluator else "the cluster has none: start it with evaluator=True"
            raise ClusterError(f"ctx.evaluate_checkpoints on {self.role}: it is for the evaluator's program ({has})")
        criterion = StopCriterion(BestMetric(monitor, mode, setting="monitor"), patience)
        found = model if hasattr(model, "evaluate") or not callable(model) else model()
        if not hasattr(found, "evaluate"):
            what = "expected a Keras model, or a function that returns one"
            raise SpecError(f"ctx.evaluate_checkpoints({model!r}): {what}")
        evaluate = evaluation_of(found, data, batch_size)
        node = EvaluatorNode(self._link, self.scratch, str(self.role), self.host)
        return Evaluator(node, directory, found, evaluate, criterion, log_dir).run()

    def preemption(self) -> Preemption | None:
        """Return which nodes go, if Spark or the platform has given notice.

        Nothing needs to be done: `Checkpoints.callback` saves after the next step, and `Checkpoints.is_due` tells
        loops when. A restart without these hosts follows, if `restarts` allows it, which charges none. Workers learn of
        it in the midst of different steps, so what they do together must not depend on it.

        Returns
        -------
        Preemption or None
            Has the ``nodes``, their ``hosts``, the ``reason``, and ``until`` when they stay, if that is known; None if
            nobody goes, or a notice was withdrawn.

        Examples
        --------
        >>> ctx.preemption() is None
        True
        """
        return self._link.saves.preemption

    def tensorboard_directory(self, path: str) -> str:
        """Return a directory of this machine for TensorBoard's logs, which are copied to `path` as they grow.

        They are copied every few seconds, and when the program has ended. TensorFlow itself writes logs to this
        machine only.

        Parameters
        ----------
        path : str
            A path, which is returned as it is, or a URL of any file system.

        Returns
        -------
        str
            A local path.

        Examples
        --------
        >>> ctx.tensorboard_directory("/logs/run-1")
        '/logs/run-1'
        """
        if storage.is_local(storage.file_system(path)[0]):
            return path
        local = self._logs.enter_context(TemporaryDirectory(prefix="tfos-", dir=self.scratch))
        self._logs.callback(storage.DirectorySync(local, path).close)
        return local

    def log_directory(self, path: str) -> str:
        """Return the same as `tensorboard_directory`, of which this is the old name.

        Parameters
        ----------
        path : str
            As for `tensorboard_directory`.

        Returns
        -------
        str
            A local path.

        Examples
        --------
        >>> ctx.log_directory("/logs/run-1")
        '/logs/run-1'
        """
        warn_renamed("ctx.log_directory", "ctx.tensorboard_directory")
        return self.tensorboard_directory(path)

    def absolute_path(self, path: str) -> str:
        """Return a path as a URL of Hadoop's default file system, unless it has a scheme already.

        A relative path begins at the user's home on HDFS, and otherwise in the executor's directory. No other function
        of a node uses the default file system: a path without a scheme is one of this machine.

        Parameters
        ----------
        path : str
            As in ``"model"``, which becomes ``hdfs://name:8020/user/ann/model`` where HDFS is the default.

        Returns
        -------
        str
            A URL, or a path of this machine where that is the default.

        Examples
        --------
        >>> ctx.absolute_path("s3a://bucket/model")
        's3a://bucket/model'
        """
        return storage.absolute_path(path, self.working_dir, self.default_fs)

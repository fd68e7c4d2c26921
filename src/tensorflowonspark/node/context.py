"""What the user's function is given: where it is, and the rows it was fed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tensorflowonspark import storage
from tensorflowonspark.config import ClusterSpec, Job, Role
from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.feed_messages import CacheConfig, CacheMode
from tensorflowonspark.keras.saving import inference_call
from tensorflowonspark.messages import InferenceReady, Member, Serving
from tensorflowonspark.node.checkpoint.checkpoints import Checkpoints, ResumePosition
from tensorflowonspark.node.checkpoint.export import export
from tensorflowonspark.node.driver_link import Link, NodeSetup
from tensorflowonspark.node.feed.feed import Batches, Feed
from tensorflowonspark.node.feed.feeds import Feeds
from tensorflowonspark.node.feed.files import FileFeeds
from tensorflowonspark.node.feed.inference import Answerer, InferenceServer
from tensorflowonspark.node.feed.selection import Options
from tensorflowonspark.node.feed.server import FeedServer
from tensorflowonspark.node.ps.coordinator import CoordinatedFeed

if TYPE_CHECKING:
    import pyarrow as pa
    import tensorflow as tf

__all__ = ["Context"]


class Context:
    """A node, as the function that runs in it sees it.

    Attributes
    ----------
    role : Role
        Job and index, as in ``worker:1``.
    spec : ClusterSpec
        How many nodes of each job there are.
    cluster : dict
        ``host:port`` of each node's TensorFlow server, by job, as in ``TF_CONFIG``.
    attempt : int
        How often the cluster was started before, after failures (`RestartPolicy`).
    host : str
        The address of this node's executor.
    scratch : str
        A directory of this machine for temporary files, which Spark removes when the application ends.
    default_fs : str
        The URL of Hadoop's default file system, as in ``hdfs://name:8020`` or ``file://``.
    working_dir : str
        The directory of this machine in which the executor runs.
    """

    def __init__(self, setup: NodeSetup, members: tuple[Member, ...], link: Link, receiver: FeedServer | None) -> None:
        self.role: Role = setup.role
        self.spec: ClusterSpec = setup.spec
        self.attempt: int = setup.config.attempt
        self.host: str = setup.host
        self.cluster: dict[str, list[str]] = {}
        for member in members:
            self.cluster.setdefault(str(member.role.job), []).append(member.address)
        self.scratch: str = setup.local_directory
        self._setup = setup
        self.default_fs: str = storage.default_fs()
        self.working_dir: str = str(Path.cwd())
        self._link = link
        self._receiver = receiver
        self._feeds = Feeds(setup, link, receiver)
        self._current: Feed | CoordinatedFeed | None = None
        self._logs = ExitStack()

    @property
    def job(self) -> str:
        """The node's job: ``chief``, ``worker``, ``ps`` or ``evaluator``."""
        return str(self.role.job)

    @property
    def index(self) -> int:
        """The node's number within its job."""
        return self.role.index

    @property
    def num_workers(self) -> int:
        """How many nodes train: workers and chief."""
        return len(self.spec.trainers)

    @property
    def is_chief(self) -> bool:
        """Whether this node has the chief's duties: it is the chief, or worker 0 where there is none."""
        return self.role == self.spec.chief_role

    def feeds(self) -> Iterator[Feed | CoordinatedFeed]:
        """Yield one feed after the other, for each ``cluster.train(df)``, until the cluster shuts down."""
        while True:
            self._current = self._feeds.next()
            if self._current is None:
                return
            yield self._current

    def feed(self) -> Feed | CoordinatedFeed:
        """Return the current feed; wait for the first if there was none yet.

        Under a ``ParameterServerStrategy`` the chief gets a `CoordinatedFeed`, since the rows are on the workers.

        Raises
        ------
        FeedError
            If the cluster shuts down without having fed this node.
        """
        if self._current is None:
            self._current = self._feeds.next()
        if self._current is None:
            raise FeedError(
                "the program waits for rows, but the cluster was shut down without cluster.train(df): call it inside "
                "the with block, or read the data in the program itself"
            )
        return self._current

    def dataset(self, batch_size: int, **options: Any) -> "tf.data.Dataset":
        """Return the current feed as a ``tf.data.Dataset``: `Feed.dataset` says all about it."""
        return self._own_feed().dataset(batch_size, **options)

    def batches(self, batch_size: int, **options: Any) -> Batches:
        """Return batches of numpy arrays of the current feed: `Feed.batches` has the details."""
        return self._own_feed().batches(batch_size, **options)

    def validation_dataset(self, batch_size: int, **options: Any) -> "tf.data.Dataset":
        """Return the rows to validate on that came with the current feed, in their own order.

        Raises
        ------
        FeedError
            If ``cluster.train`` was given none.
        """
        validation = self._own_feed().validation
        if validation is None:
            raise FeedError("no rows to validate on were fed: give them with cluster.train(df, validation=...)")
        return validation.dataset(batch_size, **{"shuffle": False, **options})

    def _own_feed(self) -> Feed:
        feed = self.feed()
        if isinstance(feed, CoordinatedFeed):
            raise FeedError(f"{self.role} has no rows of its own, the workers have them: use ctx.feed().per_worker")
        return feed

    def read_tfrecord(
        self,
        paths: str | Sequence[str],
        *,
        schema: "pa.Schema | None" = None,
        columns: Sequence[str] | None = None,
        cache: str = "disk",
        cache_limit: int | str | None = None,
        **options: Any,
    ) -> Feed:
        """Read TFRecord files past Spark, each worker its share; return them as a feed that all workers have.

        Call it on all workers, with the same paths. ``.dataset(batch_size)`` of what it returns is a
        ``tf.data.Dataset`` with even steps, as of `feed`.

        Parameters
        ----------
        paths : str or sequence of str
            Files, directories or wildcards, on any file system; long files are divided.
        schema : pa.Schema, optional
            The features and their types. By default they are told from the first records.
        columns : sequence of str, optional
            Those that are wanted; others are not decoded.
        cache : {"disk", "memory"}
            Where each worker keeps its share.
        cache_limit : int or str, optional
            How many bytes a worker keeps at the most, as in ``"2g"``; more is an error.
        **options
            As for ``spark.read.format("tfrecord")``: `tfrecords.options.Options`.

        Raises
        ------
        SpecError
            If a path, a column or an option can't be right.
        TFRecordError
            If a file can't be read.
        """
        from tensorflowonspark.node.feed.files import tfrecord_pieces
        from tensorflowonspark.tfrecords.options import Options as FileOptions

        listed = [paths] if isinstance(paths, str) else list(paths)
        pieces, found = tfrecord_pieces(listed, schema, columns, FileOptions.of(options))
        return self._own_reads.read(f"ctx.read_tfrecord({paths!r})", pieces, found, _kept(cache, cache_limit))

    def read_parquet(
        self,
        paths: str | Sequence[str],
        *,
        columns: Sequence[str] | None = None,
        cache: str = "disk",
        cache_limit: int | str | None = None,
    ) -> Feed:
        """Read Parquet files past Spark, each worker its row groups; all else is as for `read_tfrecord`."""
        from tensorflowonspark.node.feed.files import parquet_pieces

        pieces, found = parquet_pieces([paths] if isinstance(paths, str) else list(paths), columns)
        return self._own_reads.read(f"ctx.read_parquet({paths!r})", pieces, found, _kept(cache, cache_limit))

    @cached_property
    def _own_reads(self) -> FileFeeds:
        if self._receiver is None:
            raise FeedError(f"{self.role} has no rows: {', '.join(map(str, self.spec.fed))} read files")
        return FileFeeds(self._setup, self._receiver.cache, self._link, self._feeds)

    def serve(self, function: Any, *, batch_rows: int = 1024, **options: Any) -> None:
        """Say what answers ``cluster.inference(df, ...)`` from now on, for as long as the cluster lives.

        Returns at once, and may be called before training, or again with something else. A node goes on answering when
        its program has returned.

        Parameters
        ----------
        function : callable or Keras model
            Takes the features of some rows, an array or a dict of arrays by column, and returns as many results: an
            array, or a dict of arrays by result column. A Keras model is called as its ``predict`` calls it.
        batch_rows : int
            How many rows it gets at the most.
        **options
            ``features``, ``shapes``, ``dtypes`` and ``fill``, as for `Feed.dataset`. By default it gets all columns;
            one that is alone comes as an array.
        """
        self.serve_batches(Answerer(_callable(function), batch_rows, Options(**options)))  # type: ignore[typeddict-item]

    def serve_batches(self, server: InferenceServer) -> None:
        """Answer inference with a server that receives and yields Arrow record batches.

        Parameters
        ----------
        server : InferenceServer
            ``server.answer(header, batches)`` is called for each partition, for several at a time.
        """
        if self._receiver is None:
            raise FeedError(f"{self.role} is sent no rows: {', '.join(map(str, self.spec.fed))} answer inference")
        self._receiver.answerer = server
        self._link.send(InferenceReady())

    def export(self, model: Any, path: str) -> None:
        """Write a trained model to a directory or file, on any file system; the chief does, the others go on.

        Call it on all workers: to save a model that is not of Keras 3, TensorFlow reads some variables from all of
        them together.

        Parameters
        ----------
        model : keras.Model, tf_keras.Model or tf.Module
            What to write.
        path : str
            A path, or a URL of any file system that fsspec knows. With the ending ``.keras`` or ``.h5`` it becomes
            one file in Keras's own format, and else a SavedModel's directory. What stood there is replaced, when the
            new model is complete.
        """
        export(model, path, self.is_chief, self.scratch)

    def checkpoint(self, directory: str, *, keep: int = 3) -> Checkpoints:
        """Return the checkpoints in a directory on any file system: the newest complete one, and how to write more.

        Parameters
        ----------
        directory : str
            A path that all nodes see, or a URL of any file system that fsspec knows. Each training has its own.
        keep : int
            How many complete checkpoints stay.

        Returns
        -------
        Checkpoints
            Has a `callback` for Keras's ``fit``, and `restore` and `save` for loops of one's own.
        """
        position = ResumePosition(self._feeds, self._link, self.num_workers)
        return Checkpoints(directory, keep, self.scratch, self.is_chief, str(self.role), position)

    def log_directory(self, path: str) -> str:
        """Return a directory of this machine for TensorBoard's logs, which are copied to `path` as they grow.

        They are copied every few seconds, and when the program has ended. TensorFlow itself writes logs to this
        machine only.

        Parameters
        ----------
        path : str
            A path, which is returned as it is, or a URL of any file system.
        """
        if storage.is_local(storage.file_system(path)[0]):
            return path
        local = self._logs.enter_context(TemporaryDirectory(prefix="tfos-", dir=self.scratch))
        self._logs.callback(storage.DirectorySync(local, path).close)
        return local

    def close(self) -> None:
        """Bring what is still on this machine to its place: called when the program has ended."""
        self._logs.close()

    def absolute_path(self, path: str) -> str:
        """Return a path as a URL of Hadoop's default file system, unless it has a scheme already.

        A relative path begins at the user's home on HDFS, and else where the executor runs. Nothing else in a node
        takes the default file system: without a scheme, a path is one of this machine.

        Parameters
        ----------
        path : str
            As in ``"model"``, which becomes ``hdfs://name:8020/user/ann/model`` where HDFS is the default.
        """
        return storage.absolute_path(path, self.working_dir, self.default_fs)

    def join_server(self) -> None:
        """Serve this node's part to a ``ParameterServerStrategy``, until the cluster shuts down.

        For the ``ps`` and ``worker`` nodes of asynchronous training; the chief runs the coordinator, and reads on
        each worker the rows that the worker was fed (`CoordinatedFeed.per_worker`).
        """
        import tensorflow as tf

        if self._receiver is not None:
            from tensorflowonspark.node.ps.remote_dataset import serve_rows

            serve_rows(self._feeds.find, self._link.send)
        self.serving()
        tf.distribute.Server(tf.train.ClusterSpec(self._training_cluster()), self.job, self.index).join()

    def release_port(self) -> None:
        """Release the node's port in `cluster`, which is reserved for TensorFlow; return when it is free.

        Only a program that binds the port without ``SO_REUSEPORT``, itself or in a child process, needs this.
        TensorFlow's servers bind it beside the reservation. A released port can be taken by any process.
        """
        self._link.release_port()

    def serving(self) -> None:
        """Say that this node's program serves others from now on and will not return: nobody waits for it."""
        self._link.send(Serving())

    def _training_cluster(self) -> dict[str, list[str]]:
        return {job: addresses for job, addresses in self.cluster.items() if job != Job.EVALUATOR.value}


def _kept(cache: str, limit: int | str | None) -> CacheConfig:
    storage = CacheConfig.parse(cache, limit)
    if storage.keep is CacheMode.NONE:
        raise SpecError(f"cache={cache!r}: files that the nodes read are kept, on 'disk' or in 'memory'")
    return storage


def _callable(function: Any) -> Callable[[Any], Any]:
    """Return a plain function of a function or a model."""
    if any(kind.__module__.split(".")[0] in ("keras", "tf_keras") for kind in type(function).__mro__):
        predict = inference_call(function)
        return lambda features: _as_numpy(predict(features))
    if not callable(function):
        raise SpecError(f"ctx.serve({function!r}): expected a function of the features, or a Keras model")
    return lambda features: _as_numpy(function(features))


def _as_numpy(results: Any) -> Any:
    if isinstance(results, Mapping):
        return {name: _as_numpy(each) for name, each in results.items()}
    return results.numpy() if hasattr(results, "numpy") else results

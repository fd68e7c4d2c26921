"""The context of a node's program: identity, feeds, parallelism, serving, checkpoints and exports."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import numpy.typing as npt
import wrapt

from tensorflowonspark import storage
from tensorflowonspark.config import ClusterSpec, Job, Role
from tensorflowonspark.errors import ClusterError, FeedError, SpecError
from tensorflowonspark.exports.writing import divided_layers
from tensorflowonspark.keras.hooks import keras_backend
from tensorflowonspark.keras.inference import inference_call
from tensorflowonspark.keras.jax.saving_alone import inference_function
from tensorflowonspark.messages import InferenceReady, Member, Serving
from tensorflowonspark.node.checkpoint.writer import Writers
from tensorflowonspark.node.driver_link import Link
from tensorflowonspark.node.feed.feed import Feed
from tensorflowonspark.node.feed.feed_server import FeedServer
from tensorflowonspark.node.feed.inference_server import FunctionServer, InferenceServer
from tensorflowonspark.node.feed.selection import FeatureOptions
from tensorflowonspark.node.feed_access import FeedAccess
from tensorflowonspark.node.output_access import OutputAccess
from tensorflowonspark.node.parallel import ParallelAccess
from tensorflowonspark.node.setup import NodeSetup


def context() -> "Context":
    """Return the context of the node that this process is.

    A script that ``tfos run`` starts gets no parameter; this is how it finds its cluster.

    Returns
    -------
    Context
        The same for each call.

    Raises
    ------
    ClusterError
        If this process is no node: the script was started otherwise.

    Examples
    --------
    >>> context().num_workers  # doctest: +SKIP
    2
    """
    if Context._of_process is None:
        raise ClusterError(
            "this process is no node of a cluster, and has no context: start the script with `tfos run`, or pass it to "
            "tensorflowonspark.run"
        )
    return Context._of_process


def keep_context(of_program: "Context") -> None:
    """Make a context the one that `context` returns."""
    Context._of_process = of_program


class Context(FeedAccess, ParallelAccess, OutputAccess):
    """The cluster as seen by the function that runs in one of its nodes.

    Attributes
    ----------
    role : Role
        Job and index, as in ``worker:1``.
    spec : ClusterSpec
        Number of nodes of each job.
    cluster : dict
        ``host:port`` of each node's TensorFlow server, by job, as in ``TF_CONFIG``. If a node is started again alone
        (`RestartPolicy.scope`), its new address takes the place of the old one.
    attempt : int
        Number of times the cluster was restarted before, after failures (`RestartPolicy`); if nodes are restarted
        alone, this node.
    host : str
        Address of this node's executor.
    gpus : tuple of str
        Addresses of this node's GPUs on its host, as in ``("0", "1")``; TensorFlow sees these alone.
    scratch : str
        A directory of this machine for temporary files, which Spark removes when the application ends.
    default_fs : str
        URL of Hadoop's default file system, as in ``hdfs://name:8020`` or ``file://``.
    working_dir : str
        The directory of this machine in which the executor runs.

    Examples
    --------
    >>> str(ctx.role), ctx.job, ctx.index, ctx.is_chief, ctx.num_workers
    ('worker:0', 'worker', 0, True, 1)
    >>> ctx.rank, ctx.world_size, ctx.local_rank
    (0, 1, 0)
    """

    _of_process: "ClassVar[Context | None]" = None  # of this process's program

    def __init__(self, setup: NodeSetup, members: tuple[Member, ...], link: Link, server: FeedServer | None) -> None:
        super().__init__(setup, link, server)
        self.role: Role = setup.role
        self.spec: ClusterSpec = setup.spec
        self.attempt: int = setup.config.attempt
        self.host: str = setup.host
        self.cluster: dict[str, list[str]] = {}
        self.gpus: tuple[str, ...] = next((each.gpus for each in members if each.number == setup.number), ())
        for member in members:
            self.cluster.setdefault(str(member.role.job), []).append(member.address)
        link.follow_members(self._take_address)
        self.scratch: str = setup.local_directory
        self.default_fs: str = storage.default_fs()
        self.working_dir: str = str(Path.cwd())
        self._writers = Writers()
        self._logs = ExitStack()
        self._logs.callback(self._writers.close)

    def _take_address(self, member: Member) -> None:
        self.cluster[str(member.role.job)][member.role.index] = member.address

    def _next_feed(self) -> Feed | None:
        """Return the next feed, once what the program has saved of the one before is written: it is done with that."""
        self._writers.wait()
        return super()._next_feed()

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
        """Number of nodes of the job ``worker``; `world_size` includes a chief."""
        return self.spec.num_workers

    @property
    def rank(self) -> int:
        """The node's number among those that train, from 0: a chief's is 0, and those of workers follow."""
        if self.role not in self.spec.trainers:
            raise ClusterError(f"{self.role} does not train, and has no rank: a chief and workers have one")
        return self.spec.trainers.index(self.role)

    @property
    def world_size(self) -> int:
        """Number of nodes that train: the workers, and a chief."""
        return len(self.spec.trainers)

    @property
    def local_rank(self) -> int:
        """The node's number among those of its host that train, from 0."""
        hosts = [self.cluster[str(each.job)][each.index].rpartition(":")[0] for each in self.spec.trainers]
        return hosts[: self.rank].count(hosts[self.rank])

    def serve(
        self,
        function: Any,
        *,
        batch_rows: int = 1024,
        features: str | Sequence[str] | None = None,
        shapes: Mapping[str, Sequence[int | None]] | None = None,
        dtypes: Mapping[str, npt.DTypeLike] | None = None,
        fill: Mapping[str, Any] | None = None,
    ) -> None:
        """Set the function that answers ``cluster.inference(df, ...)`` from now on.

        Returns immediately. Call it before or after training, and again to replace the function. The node continues to
        answer when its program has returned, until the cluster shuts down.

        Parameters
        ----------
        function : callable or Keras model
            Takes the features of some rows, an array or a dict of arrays by column, and returns as many results: an
            array, or a dict of arrays by result column. A Keras model is called as its ``predict`` calls it.
        batch_rows : int
            Rows of one call, at most.
        features, shapes, dtypes, fill
            As for `Feed.dataset`. By default the function takes all columns; a single column comes as an array.

        Raises
        ------
        FeedError
            If this node is not fed.
        SpecError
            If `function` is neither callable nor a model, or a model whose tables are divided among the workers.

        Examples
        --------
        >>> ctx.serve(lambda ids: ids * 2, features="id")
        """
        if divided := divided_layers(function):
            raise SpecError(
                f"ctx.serve: no worker has all rows of ShardedEmbedding {divided[0].name!r}, and each answers alone: "
                "serve a model with layer.to_embedding() in its place, or apply the model that ctx.export writes"
            )
        options = FeatureOptions(features=features, shapes=shapes, dtypes=dtypes, fill=fill)
        self.serve_batches(FunctionServer(_callable(function), batch_rows, options))

    def serve_batches(self, server: InferenceServer) -> None:
        """Set the server that answers ``cluster.inference(df, ...)`` from now on, in Arrow record batches.

        Parameters
        ----------
        server : InferenceServer
            ``server.answer(header, batches)`` is called for each partition, for several at a time. It yields batches
            of the Arrow schema that is serialized in ``header.schema``, with as many rows as it receives.

        Raises
        ------
        FeedError
            If this node is not fed.

        Examples
        --------
        >>> class Echo:
        ...     def answer(self, header, batches):
        ...         yield from batches
        >>> ctx.serve_batches(Echo())
        """
        if self._server is None:
            raise FeedError(f"{self.role} is sent no rows: {', '.join(map(str, self.spec.fed))} answer inference")
        self._server.inference = server
        self._link.send(InferenceReady())

    def join_server(self) -> None:
        """Run this node's server of a ``ParameterServerStrategy``, until the cluster shuts down.

        For the ``ps`` and ``worker`` nodes of asynchronous training. The chief runs the coordinator, and reads on each
        worker the rows that the worker was fed (`CoordinatedFeed.per_worker`).

        Raises
        ------
        FeedError
            If the program made a ``tf.numpy_function``, or another operation that calls Python, before.

        Examples
        --------
        The nodes that serve, in the function of a cluster with ``num_ps=1, chief=True``::

            if ctx.job in ("ps", "worker"):
                ctx.join_server()
        """
        import tensorflow as tf

        if self._server is not None:
            from tensorflowonspark.node.ps.remote_dataset import serve_rows

            serve_rows(self._find_rows, self._link.send)
        self._report_serving()
        cluster = {job: addresses for job, addresses in self.cluster.items() if job != Job.EVALUATOR.value}
        tf.distribute.Server(tf.train.ClusterSpec(cluster), self.job, self.index).join()

    def _report_serving(self) -> None:
        """Report that this node's program serves others and will not return, so that nothing waits for its end."""
        self._link.send(Serving())

    def _report_server_join(self) -> None:
        """Have the program's first call of ``tf.distribute.Server.join``, which does not return, reported."""
        wrapt.register_post_import_hook(self._wrap_join, "tensorflow")

    def _wrap_join(self, tensorflow: Any) -> None:
        def join(wrapped: Any, _instance: Any, args: Any, kwargs: Any) -> Any:
            self._report_serving()
            return wrapped(*args, **kwargs)

        wrapt.wrap_function_wrapper(tensorflow, "distribute.Server.join", join)

    def release_port(self) -> None:
        """Release the node's port in `cluster`, which is reserved for TensorFlow; return when it is free.

        Only a program that binds the port without ``SO_REUSEPORT``, itself or in a child process, needs this.
        TensorFlow's servers bind it beside the reservation. A released port can be taken by any process.

        Examples
        --------
        In a program that starts a server of its own on the port::

            ctx.release_port()
            subprocess.run(["server", "--address", ctx.cluster[ctx.job][ctx.index]])
        """
        self._link.release_port()

    def _close(self) -> None:
        """Report the last of the training, and write the last checkpoints and logs, when the program has ended."""
        self._meter.close()
        self._logs.close()
        self._record.manifest()  # with what the program has imported, and how many rows it has read


def _callable(function: Any) -> Callable[[Any], Any]:
    """Return a function, or what computes the outputs of a Keras model."""
    if any(kind.__module__.split(".")[0] in ("keras", "tf_keras") for kind in type(function).__mro__):
        is_on_jax = keras_backend() == "jax" and hasattr(function, "stateless_call")
        return inference_function(function) if is_on_jax else inference_call(function)
    if not callable(function):
        raise SpecError(f"ctx.serve({function!r}): expected a function of the features, or a Keras model")
    return function  # type: ignore[no-any-return]

"""Access to the ways of using several nodes: strategies, layouts on JAX, layers on other nodes, DTensor."""

import math
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from tensorflowonspark import transport
from tensorflowonspark.config import ClusterSpec, Job, Role
from tensorflowonspark.errors import ClusterError, SpecError
from tensorflowonspark.settings import check_seconds

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

_COMMUNICATION = ("auto", "nccl", "ring")
_CHECK_SECONDS = 0.2
_DTENSOR_JOB = "worker"  # of all clients, whatever their jobs in the cluster


class ParallelAccess:
    """The methods of a `Context` that set TensorFlow or JAX up for several nodes."""

    role: Role
    spec: ClusterSpec
    cluster: dict[str, list[str]]
    host: str

    def strategy(
        self,
        communication: Literal["auto", "nccl", "ring"] = "auto",
        *,
        timeout: float | None = None,
        bytes_per_pack: int | None = None,
    ) -> "tf.distribute.MultiWorkerMirroredStrategy":
        """Return a strategy of synchronous training, with settings of its communication.

        It is a ``tf.distribute.MultiWorkerMirroredStrategy``, which a program may also make itself. All workers call
        this, with the same settings, and before anything else of TensorFlow.

        Parameters
        ----------
        communication : {"auto", "nccl", "ring"}
            Who sums gradients: NVIDIA's NCCL, which needs a GPU on each worker, or TensorFlow's ring over gRPC. With
            "auto" TensorFlow decides.
        timeout : float, optional
            Seconds after which a reduction raises ``DeadlineExceededError``: longer than any worker rightfully keeps
            the others waiting, as when it saves a model. TensorFlow starts a thread for each reduction then. By default
            there is no limit, and the driver ends a cluster that hangs (`heartbeat_timeout`).
        bytes_per_pack : int, optional
            The size of the packs in which gradients are reduced, so that the first ones are sent while the rest is
            computed. By default there is one pack.

        Returns
        -------
        tf.distribute.MultiWorkerMirroredStrategy
            The strategy.

        Raises
        ------
        SpecError
            If an argument can't be right, this node has no GPU for "nccl", or the cluster has parameter servers.

        Examples
        --------
        >>> strategy = ctx.strategy("ring", timeout=60, bytes_per_pack=32 << 20)
        >>> strategy.num_replicas_in_sync
        1
        """
        if communication not in _COMMUNICATION:
            raise SpecError(f"communication={communication!r}: expected one of {', '.join(map(repr, _COMMUNICATION))}")
        if timeout is not None:
            check_seconds("timeout", timeout)
        if bytes_per_pack is not None and (
            not isinstance(bytes_per_pack, int) or isinstance(bytes_per_pack, bool) or bytes_per_pack < 1
        ):
            raise SpecError(f"bytes_per_pack={bytes_per_pack!r}: expected a whole number of bytes from 1 on, or None")
        if self.spec.num_ps:
            raise SpecError(
                "ctx.strategy() is for workers that train in step, and the cluster has parameter servers: make a "
                "tf.distribute.ParameterServerStrategy"
            )
        import tensorflow as tf

        if communication == "nccl" and not tf.config.list_physical_devices("GPU"):
            raise SpecError(
                f"communication='nccl': TensorFlow sees no GPU on {self.role} ({self.host}), and NCCL needs one on "
                "each worker: see `tfos check --gpu`, or use 'auto' or 'ring'"
            )
        options = tf.distribute.experimental.CommunicationOptions(
            bytes_per_pack=bytes_per_pack or 0,
            timeout_seconds=timeout,
            implementation=tf.distribute.experimental.CommunicationImplementation(communication.upper()),
        )
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)

    # ---- Keras on JAX

    def layout(
        self, kind: Literal["data", "fsdp", "model"] = "data", *, min_size: int = 65_536
    ) -> "keras.distribution.Distribution":
        """Set how variables and batches are divided among the devices of all workers, on JAX.

        All workers call this with the same arguments, once, before the first model, layer, metric or optimizer. The
        slots of an optimizer are divided as their variables. Whatever the layout, a training computes what one process
        does, and a checkpoint of one is restored with any other.

        Parameters
        ----------
        kind : {"data", "fsdp", "model"}
            With "data" each device has the whole model, and a part of each batch, as it is without this call. With
            "fsdp" each has a part of the variables too, among all devices of all workers. With "model" each worker has
            the whole model, divided among its own devices, and a part of each batch.
        min_size : int
            Variables with fewer elements stay whole on each device, and so does one of which no dimension can be
            divided evenly. The others are divided along the largest dimension that can be.

        Returns
        -------
        keras.distribution.Distribution
            The distribution, which is Keras's from now on.

        Raises
        ------
        SpecError
            If an argument can't be right, Keras's backend is not JAX, Keras has made a variable before, the program has
            set a distribution itself, the workers have different numbers of devices, or "model" has one device for each
            of several workers.

        Examples
        --------
        In the function of a cluster with ``env={"KERAS_BACKEND": "jax"}``::

            ctx.layout("fsdp")
            model = keras.Sequential([keras.Input((1024,)), keras.layers.Dense(4096, "relu"), keras.layers.Dense(10)])
        """
        from tensorflowonspark.keras.jax.layouts import set_layout

        return set_layout(kind, min_size)

    # ---- layers on other nodes

    def connect(self, *, timeout: float = 60.0) -> dict[str, str]:
        """Connect TensorFlow in this process to all other nodes, so that it can place layers on them.

        For the chief of a cluster whose other nodes call `join_server`. The chief alone trains, and reads its data
        itself: rows of a feed would go to all nodes.

        Parameters
        ----------
        timeout : float
            Seconds to wait until all other nodes serve.

        Returns
        -------
        dict
            The name of each node's device, by the node's name: its first GPU, or else its CPU.

        Raises
        ------
        ClusterError
            If this is not the chief, TensorFlow has started with another cluster, or a node does not serve in time; the
            error names it.
        SpecError
            If the cluster has no other node, or `timeout` is not above 0.

        Examples
        --------
        In the function of a cluster with two workers::

            if not ctx.is_chief:
                ctx.join_server()
            ctx.connect()
            with tf.device(ctx.device("worker:1")):
                table = tf.Variable(tf.zeros((1_000_000, 64)))
        """
        check_seconds("timeout", timeout)
        if self.role != self.spec.chief_role:
            raise ClusterError(
                f"ctx.connect() on {self.role}: {self.spec.chief_role} connects to the other nodes, which call "
                "ctx.join_server()"
            )
        cluster = {job: addresses for job, addresses in self.cluster.items() if job != Job.EVALUATOR.value}
        others = {
            f"{job}:{index}": address
            for job, addresses in cluster.items()
            for index, address in enumerate(addresses)
            if f"{job}:{index}" != str(self.role)
        }
        if not others:
            raise SpecError(f"ctx.connect(): {self.role} is alone, and there is no node to place anything on")
        import tensorflow as tf
        from tensorflow.python.eager import context

        from tensorflowonspark.keras.devices import node_devices
        from tensorflowonspark.keras.startup import has_collectives

        if has_collectives(context.context()):
            raise ClusterError(
                f"ctx.connect() on {self.role}: TensorFlow has started with the workers of a "
                "MultiWorkerMirroredStrategy, or of DTensor: a program uses one of these or ctx.connect()"
            )
        if context.context().get_server_def() is not None:
            return node_devices()  # it is connected already
        self._wait_until_served(others, timeout)
        tf.config.experimental_connect_to_cluster(
            tf.train.ClusterSpec(cluster), job_name=str(self.role.job), task_index=self.role.index
        )
        return node_devices()

    def _wait_until_served(self, nodes: Mapping[str, str], timeout: float) -> None:
        end = time.monotonic() + timeout
        waiting = dict(nodes)
        while True:
            waiting = {node: address for node, address in waiting.items() if not transport.is_listening(address)}
            if not waiting:
                return
            if time.monotonic() > end:
                names = ", ".join(f"{node} ({address})" for node, address in waiting.items())
                raise ClusterError(
                    f"ctx.connect(): after {timeout:g} s (timeout) these nodes do not serve: {names}. Their program "
                    "must call ctx.join_server()"
                )
            time.sleep(_CHECK_SECONDS)

    def device(self, node: str) -> str:
        """Return the name of another node's device, for ``tf.device``.

        Parameters
        ----------
        node : str
            The name of the node, as ``"worker:1"``.

        Returns
        -------
        str
            As in ``"/job:worker/replica:0/task:1/device:CPU:0"``; the first GPU of a node that has GPUs.

        Raises
        ------
        ClusterError
            If this process is not connected (`connect`).
        SpecError
            If there is no such node.

        Examples
        --------
        In a program that has called ``ctx.connect()``::

            with tf.device(ctx.device("worker:1")):
                ...
        """
        from tensorflowonspark.keras.devices import node_devices

        if node not in map(str, self.spec.roles):
            raise SpecError(f"{node!r} is no node of this cluster: it has {', '.join(map(str, self.spec.roles))}")
        devices = node_devices()
        if node not in devices:
            raise ClusterError(f"{self.role} is not connected to {node}: call ctx.connect() first, on the chief")
        return devices[node]

    # ---- DTensor

    def init_dtensor(self, mesh: Mapping[str, int] | None = None) -> "tf.experimental.dtensor.Mesh":
        """Start DTensor on all workers; return a mesh over their devices.

        All workers call this, before anything else of TensorFlow. A second call returns another mesh. From the first
        call on, ``TF_CONFIG`` is unset: there is no strategy beside DTensor.

        Parameters
        ----------
        mesh : mapping of str to int, optional
            The dimensions of the mesh by name. Their product is the number of devices: the GPUs of all workers, or else
            one CPU for each. By default all devices are in one dimension, ``"batch"``.

        Returns
        -------
        tf.experimental.dtensor.Mesh
            The mesh.

        Raises
        ------
        SpecError
            If a dimension is below 1, the product is not the number of devices, or the cluster has nodes that are no
            workers.
        ClusterError
            If TensorFlow has started already.

        Examples
        --------
        In the function of a cluster with two workers, a variable whose columns are divided between them::

            mesh = ctx.init_dtensor({"batch": 1, "model": 2})
            dtensor = tf.experimental.dtensor
            by_column = dtensor.Layout([dtensor.UNSHARDED, "model"], mesh)
            zeros = tf.function(lambda: tf.zeros((1024, 1024)))
            kernel = dtensor.DVariable(dtensor.call_with_layout(zeros, by_column))
        """
        if len(self.spec.trainers) != len(self.spec.roles):
            raise SpecError(f"ctx.init_dtensor() is for workers alone, and the cluster has {self.spec}")
        for name, size in (mesh or {}).items():
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise SpecError(f"mesh={dict(mesh or {})!r}: expected a whole number from 1 on for {name!r}")
        import tensorflow as tf
        from tensorflow.python.eager import context

        dtensor = tf.experimental.dtensor
        kind = dtensor.preferred_device_type()
        devices = len(tf.config.list_physical_devices(kind)) * len(self.spec.trainers)
        dimensions = dict(mesh or {"batch": devices})
        if math.prod(dimensions.values()) != devices:
            raise SpecError(
                f"mesh={dimensions!r} has {math.prod(dimensions.values())} devices, and {len(self.spec.trainers)} "
                f"workers have {devices} ({kind}): the product of the dimensions must be their number"
            )
        variables = self._dtensor_variables()
        has_started, by_earlier_call = context.context()._initialized, variables.items() <= os.environ.items()
        if has_started and not by_earlier_call:
            raise ClusterError(
                f"ctx.init_dtensor() on {self.role}: TensorFlow has started already, with a strategy, a tensor, a "
                "variable or a dataset: make ctx.init_dtensor() the first call"
            )
        if not has_started:
            os.environ.pop("TF_CONFIG", None)
            os.environ.update(variables)
            dtensor.initialize_accelerator_system(kind)
        return dtensor.create_distributed_mesh(dimensions, device_type=kind)

    def _dtensor_variables(self) -> dict[str, str]:
        trainers = self.spec.trainers
        addresses = [self.cluster[str(role.job)][role.index] for role in trainers]
        return {
            "DTENSOR_CLIENT_ID": str(trainers.index(self.role)),
            "DTENSOR_NUM_CLIENTS": str(len(trainers)),
            "DTENSOR_JOB_NAME": _DTENSOR_JOB,
            "DTENSOR_JOBS": ",".join(addresses),
        }

"""The workers of a cluster as the processes of one JAX program.

``jax.distributed`` must be initialised before JAX computes anything, and it computes when Keras makes its first
variable. So it is initialised when JAX has been imported, if it is Keras's backend: all programs import it, and the
program itself needs no line for it. The first worker runs JAX's coordinator at its reserved port.

JAX's own detection of lost processes is switched off as far as possible: the supervisors detect each loss at once, and
report which node ended and why.
"""

import atexit
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import wrapt

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.hooks import keras_backend, wrap
from tensorflowonspark.keras.private_names import warn_of_untested
from tensorflowonspark.keras.workers import combine

ALONE = "TFOS_JAX_ALONE"  # an environment variable: its workers do not form one JAX program
_HEARTBEAT_SECONDS = 86_400  # after which JAX itself takes a process for lost; supervisors find that at once
_SHUTDOWN_SECONDS = 5  # at the end, for all processes to leave
_SEEDS = 10**9
_GPU_DEVICES = ("/dev/nvidiactl", "/dev/kfd")


@dataclass
class JaxCluster:
    """The processes of one JAX program."""

    addresses: Sequence[str]  # host:port of each process; JAX's coordinator is at the first
    index: int
    replaced: bool = False  # whether a lost node is started again alone
    shared_gpu: str = ""  # which processes have a GPU in common, as words; empty if none have
    started: bool = False  # whether `jax.distributed` has been initialised
    seed: int = 0  # a random number that all processes have
    distribution: Any = None  # Keras's, unless the program sets another: of batches, or that of `join_distribution`

    def start(self, jax: Any) -> None:
        """Initialise ``jax.distributed`` (called after the import of JAX), unless that is done.

        If JAX has computed something before, if lost nodes are started again alone, or if two share a GPU, it is a
        `SpecError`.
        """
        if self.started:
            return
        if self.replaced:
            raise SpecError(
                'RestartPolicy(scope="node"): JAX ends the processes of a program when one of them is lost, and none '
                f'can join it again. Leave out scope, or have the workers train alone by env={{"{ALONE}": "1"}}'
            )
        if self.shared_gpu:
            raise SpecError(
                f"{self.shared_gpu}, and NCCL, by which JAX adds their gradients, takes one process per GPU: start "
                "as many workers as there are GPUs, or have the workers train alone, each a model of its own, by "
                f'env={{"{ALONE}": "1"}}'
            )
        self.started = True
        warn_of_untested("jax")
        self.seed = combine("import jax", int.from_bytes(os.urandom(4), "big") % _SEEDS)[0]
        initialize = jax.distributed.initialize
        options = {
            "cluster_detection_method": "deactivate",
            "heartbeat_timeout_seconds": _HEARTBEAT_SECONDS,
            "shutdown_timeout_seconds": _SHUTDOWN_SECONDS,
        }
        known = inspect.signature(initialize).parameters
        options = {name: value for name, value in options.items() if name in known}
        try:
            initialize(self.addresses[0], len(self.addresses), self.index, **options)
        except RuntimeError as error:
            if "must be called before" not in str(error):
                raise
            raise SpecError(
                "JAX has computed something in this process before its workers could be connected: set "
                'env={"KERAS_BACKEND": "jax"} on the cluster, or import keras before anything that JAX computes'
            ) from error
        # Programs that do it themselves, as they must elsewhere.
        jax.distributed.initialize = lambda *_, **__: None
        _leave_at_exit(jax)

    def distribute(self, module: Any) -> None:
        """Set a distribution of batches over all processes, if Keras has none (``keras.distribution`` is given)."""
        known = module.distribution()
        if known is not None:
            _membership.chose_distribution = known is not self.distribution  # the program is in the scope of its own
            return
        if self.distribution is None:
            self.distribution = module.DataParallel(auto_shard_dataset=False)
        module.set_distribution(self.distribution)
        _membership.chose_distribution = False


@dataclass
class _Membership:
    """What Keras's functions, which are wrapped for the whole process, know of the other processes."""

    cluster: JaxCluster | None = None  # in which this process is, or will be as soon as Keras uses JAX
    chose_distribution: bool = False  # whether the program has set a distribution, or none: then no other is set
    has_variables: bool = False  # whether Keras has made any
    joined: tuple[Any, ...] = ()  # what the program has asked `join_distribution` for


_membership = _Membership()  # of this process, in which JAX and Keras's distribution are one too


def connect(
    addresses: Sequence[str], index: int, *, replaced: bool, gpus: Sequence[tuple[str, str, tuple[str, ...]]]
) -> None:
    """Make this process one of several in one JAX program, as soon as Keras uses JAX.

    `addresses` are ``host:port`` of each worker, and `index` is this one's place among them. `replaced` is whether a
    lost node is started again alone. `gpus` has the name, the host and the GPUs of each worker.
    """
    if _trains_alone():
        return
    _membership.cluster = cluster = JaxCluster(addresses, index, replaced, shared_gpu(gpus))

    def start(_: ModuleType) -> None:
        if keras_backend() == "jax" and "jax" in sys.modules:
            cluster.start(sys.modules["jax"])

    for module in ("jax", "keras"):  # the second is for a backend that Keras's own configuration file names
        wrapt.register_post_import_hook(start, module)


def _trains_alone() -> bool:
    return os.environ.get(ALONE, "0") not in ("", "0")


def shared_gpu(workers: Sequence[tuple[str, str, tuple[str, ...]]]) -> str:
    """Return which workers have a GPU in common, as words; empty if none have.

    Examples
    --------
    >>> shared_gpu([("worker:0", "a", ("0",)), ("worker:1", "a", ("0",)), ("worker:2", "b", ("0",))])
    'worker:0 and worker:1 on a share the GPU 0'
    >>> shared_gpu([("worker:0", "a", ("0",)), ("worker:1", "a", ("1",))])
    ''
    """
    users: dict[tuple[str, str], list[str]] = {}
    for name, host, gpus in workers:
        for gpu in gpus:
            users.setdefault((host, gpu), []).append(name)
    found = (
        f"{' and '.join(names)} on {host} share the GPU {gpu}" for (host, gpu), names in users.items() if names[1:]
    )
    return next(found, "")


def current() -> JaxCluster | None:
    """Return the JAX program of several processes in which this is one; None if it is alone."""
    cluster = _membership.cluster
    return cluster if cluster and cluster.started else None


def trains_together() -> bool:
    """Return whether the models of this process train with those of others, as parts of one JAX program."""
    import keras

    return current() is not None and keras.distribution.distribution() is not None


def keras_uses_jax() -> bool:
    """Return whether Keras trains on JAX here, with other workers, whose batches must have as many rows."""
    cluster = _membership.cluster
    return cluster is not None and (cluster.started or keras_backend() == "jax")


def _leave_at_exit(jax: Any) -> None:
    """Have this process leave the others at its end, without JAX's search for objects that the program still holds."""
    api = sys.modules.get("jax._src.api")
    clean_up = getattr(api, "clean_up", None)
    if clean_up is not None:
        atexit.unregister(clean_up)

    def leave() -> None:
        with suppress(Exception):  # another process has ended before
            jax.distributed.shutdown()

    atexit.register(leave)


def leave_gpus_to_jax(tensorflow: Any) -> None:
    """Have TensorFlow, which only reads rows beside JAX, take no memory of GPUs (called after its import)."""
    if any(Path(device).exists() for device in _GPU_DEVICES):
        with suppress(RuntimeError):  # the program has started it in a hook of its own
            tensorflow.config.set_visible_devices([], "GPU")


def share_seed(module: ModuleType) -> None:
    """Have all workers draw the same default seeds (called after the import of Keras's ``seed_generator``)."""

    def make_default_seed(wrapped: Any, _: Any, /, *args: Any, **kwargs: Any) -> Any:
        cluster = current()
        if cluster is None or _has_seed():
            return wrapped(*args, **kwargs)
        # Python's own generator, which Keras uses, is another one on each worker. This is the next of a sequence.
        cluster.seed = (cluster.seed * 1_103_515_245 + 12_345) % _SEEDS
        return cluster.seed + 1

    wrap(module, "make_default_seed", make_default_seed)


def _has_seed() -> bool:
    """Return whether the program has called ``keras.utils.set_random_seed``."""
    from keras.src.utils import rng_utils  # its import is complete by now

    return rng_utils.get_random_seed() is not None


def distribute_by_default(keras: Any) -> None:
    """Have Keras distribute batches over all workers, unless the program has set a distribution, or none.

    Called after the import of Keras. The distribution is set when the first variable is made, since JAX looks for its
    devices then, and not before: the program may still configure it.
    """

    def set_distribution(wrapped: Any, _: Any, /, *args: Any, **kwargs: Any) -> Any:
        _membership.chose_distribution = True
        return wrapped(*args, **kwargs)

    def make_variable(wrapped: Any, _: Any, /, *args: Any, **kwargs: Any) -> Any:
        cluster = current()
        if cluster is not None and not _membership.chose_distribution:
            cluster.distribute(keras.distribution)
        _membership.has_variables = True
        return wrapped(*args, **kwargs)

    wrap(keras, "distribution.set_distribution", set_distribution)
    wrap(keras, "Variable.__init__", make_variable)


def join_distribution(asked: tuple[Any, ...], call: str, make: Callable[[], Any]) -> Any:
    """Set the distribution that `make` returns in the place of that of batches, and return it; for a `call`.

    A program that has `asked` for the same before gets the same. Raises SpecError if the workers ask for different
    ones, if they train alone, or if Keras has made variables before, which lie on the devices otherwise. A worker that
    is the only one becomes a program of one process, where batches are filled up for its devices as among several.
    """
    import keras

    if _trains_alone():
        raise SpecError(f"{call}: {ALONE} is set, by which each worker trains a model of its own: leave it out")
    if _membership.joined != asked:
        if _membership.has_variables or _membership.chose_distribution:
            found = "set a distribution" if _membership.chose_distribution else "made a variable of Keras"
            raise SpecError(
                f"{call}: the program has {found} before. Call it once, before the first model, layer, metric or "
                "optimizer"
            )
        of_all = combine("ctx.layout", asked)
        if different := next((number for number, each in enumerate(of_all) if each != of_all[0]), 0):
            raise SpecError(
                f"ctx.layout: worker 0 has asked for {of_all[0]}, and worker {different} for {of_all[different]}: call "
                "it with the same arguments on all workers"
            )
        cluster = current() or JaxCluster([], 0, started=True, seed=int.from_bytes(os.urandom(4), "big") % _SEEDS)
        cluster.distribution = make()
        _membership.cluster, _membership.joined = cluster, asked
    distribution = _membership.cluster.distribution if _membership.cluster else None
    keras.distribution.set_distribution(distribution)
    _membership.chose_distribution = False  # Keras loses it in clear_session: it is set again with the next variable
    return distribution


@contextmanager
def undistributed() -> Iterator[None]:
    """Have Keras distribute nothing for the duration of a block, which is no choice of the program."""
    import keras

    distribution, chosen = keras.distribution.distribution(), _membership.chose_distribution
    keras.distribution.set_distribution(None)
    try:
        yield
    finally:
        keras.distribution.set_distribution(distribution)
        _membership.chose_distribution = chosen

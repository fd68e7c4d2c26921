"""Start of TensorFlow for a ``MultiWorkerMirroredStrategy``: one made late, time-outs, and what SIGTERM does.

The strategy configures the workers' collectives, and starts this worker's server, which renames devices. TensorFlow
refuses that once its runtime has started, as it does with the first tensor or dataset. So the runtime starts with these
settings if the program contains the strategy's name: it waits for no other worker, and a program that makes no strategy
runs as without them.

A runtime that starts before the strategy has no coordination service, since that waits for all workers. A worker whose
peer has died may then wait for a minute, until TensorFlow's other check of its peers' health; the driver detects that
death itself, and shuts the cluster down.
"""

import copy
import inspect
import itertools
import os
import signal
import sys
import threading
import weakref
from pathlib import Path
from types import ModuleType
from typing import Any

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.hooks import wrap
from tensorflowonspark.keras.private_names import refuse_replicas
from tensorflowonspark.keras.repairs import STRATEGY_CLASSES

_STRATEGIES = (b"MultiWorkerMirroredStrategy", b"CollectiveAllReduceStrategy")
# `Context.strategy` makes the strategy too. In a pickle its name is that of any attribute or variable; a program that
# makes a strategy by ``tf.distribute`` has both names.
_METHOD, _MODULE = (b"\x8c" + bytes([len(name)]) + name for name in (b"strategy", b"distribute"))
_IN_FILES = (*_STRATEGIES, b"ctx.strategy(")
_LONGEST_SECONDS = 86_400.0
_key_bases = itertools.count(0, 1 << 16)  # of the strategies of this process, which have a few keys each
_LIBRARIES = (f"{Path(__file__).parents[1]}{os.sep}", f"{sys.base_prefix}{os.sep}")
_PACKAGES = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))


def start_with_collectives(context: ModuleType, program: bytes, heartbeat_timeout: float) -> None:
    """Start TensorFlow's runtime with the strategy's settings (called after the import of TensorFlow's ``context``).

    Parameters
    ----------
    context : module
        ``tensorflow.python.eager.context``.
    program : bytes
        The user's function, pickled.
    heartbeat_timeout : float
        The cluster's; 0 leaves TensorFlow's own time-outs.
    """
    _wait_for_workers(context, heartbeat_timeout)
    original = context.Context.ensure_initialized

    def ensure_initialized(self: Any) -> None:
        if self is context._context and not self._initialized:
            context.Context.ensure_initialized = original  # once, since every operation calls it
            if not _is_configured(self) and names_strategy(program):
                _configure(self)
        original(self)

    context.Context.ensure_initialized = ensure_initialized


def _is_configured(context: Any) -> bool:
    """Return whether a strategy, or another part of TensorFlow, has configured the communication of processes."""
    return has_collectives(context) or context.get_server_def() is not None


def has_collectives(context: Any) -> bool:
    """Return whether TensorFlow starts, or has started, as a worker of a strategy or of DTensor."""
    return bool(context.config.experimental.collective_group_leader)


def names_strategy(program: bytes) -> bool:
    """Return whether the user's function, or one of their modules, contains the strategy's name or ``ctx.strategy``."""
    if any(name in program for name in _STRATEGIES) or (_METHOD in program and _MODULE not in program):
        return True
    # Not by getattr, which would import a lazy module.
    files = [getattr(module, "__dict__", {}).get("__file__") for module in sys.modules.copy().values()]
    return any(_file_names_strategy(file) for file in files if file and _is_users(file))


def _is_users(file: str) -> bool:
    """Return whether a module's file belongs neither to Python, nor to a package; there are thousands of those."""
    return file.endswith(".py") and not file.startswith(_LIBRARIES) and not any(part in file for part in _PACKAGES)


def _file_names_strategy(file: str) -> bool:
    try:
        text = Path(file).read_bytes()
    except OSError:
        return False
    return any(name in text for name in _IN_FILES)


def _configure(context: Any) -> None:
    """Configure TensorFlow as the strategy does, for several workers."""
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    cluster = resolver.cluster_spec().as_dict()
    job, index = resolver.task_type, resolver.task_id
    workers = len(cluster.get("chief", [])) + len(cluster.get("worker", []))
    if job not in ("chief", "worker") or "ps" in cluster or workers == 1:
        return
    context.configure_collective_ops(
        collective_leader=f"/job:{'chief' if 'chief' in cluster else 'worker'}/replica:0/task:0",
        scoped_allocator_enabled_ops=("CollectiveReduce",),
        device_filters=(f"/job:{job}/task:{index}",),
    )
    context.enable_collective_ops(
        tf.train.ServerDef(
            cluster=resolver.cluster_spec().as_cluster_def(),
            default_session_config=copy.deepcopy(context.config),
            job_name=job,
            task_index=index,
            protocol=resolver.rpc_layer or "grpc",
        )
    )
    # The strategy would expect the service to be started later, and not check its peers' health.
    context.configure_coordination_service = lambda *_, **__: None
    _keep_server(context)


def _keep_server(context: Any) -> None:
    """Have strategies that are made later not update this worker's server, which loses what others have sent it.

    They would fail with ``Delete called on non-empty BufRendezvous``.
    """
    context.enable_collective_ops = lambda *_, **__: None


def _wait_for_workers(context: ModuleType, heartbeat_timeout: float) -> None:
    """Have TensorFlow wait for a worker that can't be reached as long as the driver does, which names its host.

    A worker's heartbeat fails if it gets no answer within half of the service's time-out, which is 10 s by default: a
    break of the network of five seconds would end the training.
    """
    milliseconds = int(2000 * min(heartbeat_timeout, _LONGEST_SECONDS))

    def configure(wrapped: Any, _: Any, /, *args: Any, **kwargs: Any) -> Any:
        return wrapped(*args, **{"heartbeat_timeout_in_ms": milliseconds, **kwargs})

    wrap(context, "Context.configure_coordination_service", configure)


def prepare_strategies(tensorflow: ModuleType) -> None:
    """Have a strategy begin as a program expects it (called after the import of TensorFlow).

    - The error of one that is made too late says what to do.
    - A program can make several, one after another.
    - One that would train wrongly, since a name is missing that a repair needs, is refused.
    - What the program does on SIGTERM stays. TensorFlow starts a service with the strategy, which replaces the
      program's handler by one of its own, and takes the signal as the notice of a preemption. A driver asks programs to
      end by this signal, and they would ignore it. (A program that makes use of such notices, by
      ``PreemptionCheckpointHandler``, sets its handler after the strategy.)
    """

    def make(wrapped: Any, strategy: Any, /, *args: Any, **kwargs: Any) -> None:
        # Each strategy exchanges by keys of its own, in a server that knows those of the strategies before.
        strategy._collective_key_base = next(_key_bases)
        try:
            wrapped(*args, **kwargs)
        except RuntimeError as error:
            if "must be configured at program startup" not in str(error):
                raise
            raise SpecError(
                "MultiWorkerMirroredStrategy() is made after TensorFlow has started in this process: make it the first "
                "thing in the function, before ctx.dataset(...) and before any tensor, variable, layer or dataset"
            ) from error
        given = inspect.signature(wrapped).bind(*args, **kwargs).arguments
        strategy._tfos_options = given.get("communication_options")
        strategy.extended._tfos_strategy = weakref.ref(strategy)
        if strategy.cluster_resolver.cluster_spec().as_dict():
            from tensorflow.python.eager import context as eager

            _keep_server(eager.context())
            _keep_sigterm()
        if strategy.num_replicas_in_sync > 1:
            refuse_replicas()

    for name in STRATEGY_CLASSES:
        wrap(tensorflow, f"{name}.__init__", make)


def _keep_sigterm() -> None:
    """Set the handler of SIGTERM that Python knows once more, in place of TensorFlow's."""
    handler = signal.getsignal(signal.SIGTERM)  # Python does not know of the one in TensorFlow
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)

"""Start of TensorFlow for a ``MultiWorkerMirroredStrategy``: its place in a program, time-outs, what SIGTERM does.

The strategy configures the workers' collectives, and starts this worker's server, which renames devices. TensorFlow
refuses that once its runtime has started, as it does with the first tensor or dataset: so the strategy, made by
``ctx.strategy`` or by TensorFlow's own name, is the first thing in a program that needs one.
"""

import inspect
import itertools
import signal
import threading
import weakref
from types import ModuleType
from typing import Any

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.hooks import wrap
from tensorflowonspark.keras.jax.jax_processes import keras_uses_jax
from tensorflowonspark.keras.private_names import refuse_replicas
from tensorflowonspark.keras.repairs import STRATEGY_CLASSES

_LONGEST_SECONDS = 86_400.0
_key_bases = itertools.count(0, 1 << 16)  # of the strategies of this process, which have a few keys each


def set_up_collectives(context: ModuleType, heartbeat_timeout: float) -> None:
    """Have strategies start TensorFlow as a cluster needs it (called after the import of TensorFlow's ``context``).

    A `heartbeat_timeout` of 0 leaves TensorFlow's own time-outs.
    """
    _wait_for_workers(context, heartbeat_timeout)
    _keep_server(context)


def has_collectives(context: Any) -> bool:
    """Return whether a strategy, or DTensor, has TensorFlow start as one of several workers."""
    return bool(context.config.experimental.collective_group_leader)


def _keep_server(context: ModuleType) -> None:
    """Have strategies after the first one not update this worker's server, which loses what others have sent it.

    They would fail with ``Delete called on non-empty BufRendezvous``.
    """

    def enable(wrapped: Any, eager: Any, /, server_def: Any) -> None:
        if not (eager._initialized and has_collectives(eager)):
            wrapped(server_def)

    wrap(context, "Context.enable_collective_ops", enable)


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
    - One beside JAX, whose workers have taken its addresses, is refused: it would wait for ever.
    - One that would train wrongly, since a name is missing that a repair needs, is refused.
    - What the program does on SIGTERM stays. TensorFlow starts a service with the strategy, which replaces the
      program's handler by one of its own, and takes the signal as the notice of a preemption. A driver asks programs to
      end by this signal, and they would ignore it. (A program that makes use of such notices, by
      ``PreemptionCheckpointHandler``, sets its handler after the strategy.)
    """

    def make(wrapped: Any, strategy: Any, /, *args: Any, **kwargs: Any) -> None:
        if keras_uses_jax():
            raise SpecError(
                "MultiWorkerMirroredStrategy() is TensorFlow's, and Keras is on JAX here, whose workers train in step "
                "without one: leave out the strategy and its scope, or KERAS_BACKEND=jax"
            )
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

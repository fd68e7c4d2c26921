"""KerasTuner's distributed mode on the workers of a cluster: the first one runs the oracle, the others the trials.

KerasTuner finds its oracle by three environment variables. They are set when a program makes a tuner, unless the
program's environment has one of them, or the workers have made a strategy to train one model together. Then each has an
oracle of its own, and all must draw the same trials: those without a seed get one in common.
"""

import inspect
import logging
import os
import queue
import sys
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from threading import Thread
from types import SimpleNamespace
from typing import Any

import wrapt

from tensorflowonspark.config import ClusterSpec, Role
from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.startup import has_collectives
from tensorflowonspark.messages import Member

_log = logging.getLogger(__name__)
_TUNER_ID, _IP, _PORT = "KERASTUNER_TUNER_ID", "KERASTUNER_ORACLE_IP", "KERASTUNER_ORACLE_PORT"
_CHIEF = "chief"  # KerasTuner's id of the process that runs the oracle
_CHECK_SECONDS = 1.0  # between two looks at whether all tuners have ended; KerasTuner's own pause is 20 s


def share_oracle(role: Role, spec: ClusterSpec, members: Sequence[Member]) -> None:
    """Have KerasTuner search on all workers together, if this program makes a tuner.

    With parameter servers, and on the evaluator, KerasTuner is left as it is.
    """
    trainers = spec.trainers
    if role not in trainers or len(trainers) == 1 or spec.num_ps:
        return
    address = next(each.address for each in members if each.role == trainers[0])
    variables = _variables(trainers.index(role), address)
    wrapt.register_post_import_hook(_serve_to_the_end, "keras_tuner.src.distribute.oracle_chief")
    wrapt.register_post_import_hook(_make_tuners, "keras_tuner.src.engine.base_tuner")
    seed = 1 + zlib.crc32(repr(sorted(each.address for each in members)).encode()) % 10_000  # KerasTuner's own range
    wrapt.register_post_import_hook(partial(_find_oracle, variables, seed), "keras_tuner.src.engine.oracle")


def _variables(index: int, address: str) -> dict[str, str]:
    """Return KerasTuner's variables of a worker; the first one serves at the port that is reserved for TensorFlow.

    Examples
    --------
    >>> _variables(2, "10.0.0.7:4000")["KERASTUNER_TUNER_ID"]
    'tuner1'
    """
    host, _, port = address.rpartition(":")
    return {_TUNER_ID: f"tuner{index - 1}" if index else _CHIEF, _IP: host, _PORT: port}


def _find_oracle(variables: Mapping[str, str], seed: int, module: Any) -> None:
    """Have a tuner find the oracle of all workers; those that train one model together draw the same trials instead."""

    def make(wrapped: Any, _: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        bound = inspect.signature(wrapped).bind(*args, **options).arguments
        if any(name in os.environ for name in variables):
            return wrapped(**bound)
        if _train_together():
            bound["seed"] = bound.get("seed") or seed
            return wrapped(**bound)
        os.environ.update(variables)
        if variables[_TUNER_ID] == _CHIEF:
            text = "KerasTuner searches on all workers together: this one runs the oracle, the others the trials"
            _log.warning("%s (to search on each by itself, set %s)", text, _TUNER_ID)
        return wrapped(**bound)

    wrapt.wrap_function_wrapper(module, "Oracle.__init__", make)


def _train_together() -> bool:
    """Return whether this process has made a strategy of several workers."""
    context = sys.modules.get("tensorflow.python.eager.context")
    return context is not None and has_collectives(context.context())


def _serve_to_the_end(module: Any) -> None:
    """Have the oracle answer as long as its process lives: tuners ask for the best trials after the search.

    KerasTuner's server would end with the search, and those requests wait for an hour.
    """
    servers = []  # one that is forgotten ends

    def server(*args: Any, **options: Any) -> Any:
        servers.append(grpc.server(*args, **options))
        return servers[-1]

    grpc = module.grpc
    module.grpc = SimpleNamespace(**{**vars(grpc), "server": server})
    module.futures = SimpleNamespace(**{**vars(module.futures), "ThreadPoolExecutor": _DaemonThread})
    module.time = SimpleNamespace(**{**vars(time), "sleep": lambda seconds: time.sleep(min(seconds, _CHECK_SECONDS))})


def _make_tuners(module: Any) -> None:
    """Have the oracle's process alone remove the results of an earlier search, and refuse a strategy that is late."""

    def make(wrapped: Any, _: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        searches_together = bool(os.environ.get(_IP))
        if searches_together and os.environ.get(_TUNER_ID) != _CHIEF and options.get("overwrite"):
            options = {**options, "overwrite": False}
        wrapped(*args, **options)
        if searches_together and _train_together():
            raise SpecError(
                "KerasTuner gives each worker trials of its own, and the function that builds its model makes a "
                "MultiWorkerMirroredStrategy, whose workers train one model together: make the strategy before the "
                "tuner"
            )

    wrapt.wrap_function_wrapper(module, "BaseTuner.__init__", make)


class _DaemonThread(Executor):
    """A thread that runs functions one after another, and that no program waits for at its end."""

    def __init__(self, max_workers: int = 1) -> None:  # noqa: ARG002 - a parameter of the pool that it replaces
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        Thread(target=self._run, daemon=True).start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Have the thread call a function."""
        future: Future[Any] = Future()
        self._calls.put((future, partial(fn, *args, **kwargs)))
        return future

    def _run(self) -> None:
        while True:
            future, call = self._calls.get()
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)

"""KerasTuner's distributed mode on the workers of a cluster: the first one runs the oracle, the others the trials.

KerasTuner finds its oracle by three environment variables. They are set when a program imports it, unless the program's
environment has one of them, or the workers train one model together. Then each has an oracle of its own, and all must
draw the same trials: those without a seed get one in common.
"""

import inspect
import logging
import os
import queue
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from threading import Thread
from types import ModuleType, SimpleNamespace
from typing import Any

import wrapt

from tensorflowonspark.config import ClusterSpec, Role
from tensorflowonspark.keras.startup import names_strategy
from tensorflowonspark.messages import Member

_log = logging.getLogger(__name__)
_TUNER_ID, _IP, _PORT = "KERASTUNER_TUNER_ID", "KERASTUNER_ORACLE_IP", "KERASTUNER_ORACLE_PORT"
_CHIEF = "chief"  # KerasTuner's id of the process that runs the oracle
_CHECK_SECONDS = 1.0  # between two looks at whether all tuners have ended; KerasTuner's own pause is 20 s


def share_oracle(role: Role, spec: ClusterSpec, members: Sequence[Member], program: bytes) -> None:
    """Have KerasTuner search on all workers together, if this program imports it.

    With parameter servers, and on the evaluator, KerasTuner is left as it is. `program` is the user's function or
    script, pickled.
    """
    trainers = spec.trainers
    if role not in trainers or len(trainers) == 1 or spec.num_ps:
        return
    address = next(each.address for each in members if each.role == trainers[0])
    variables = _variables(trainers.index(role), address)
    wrapt.register_post_import_hook(partial(_set, variables, program), "keras_tuner")
    wrapt.register_post_import_hook(_serve_to_the_end, "keras_tuner.src.distribute.oracle_chief")
    wrapt.register_post_import_hook(_overwrite_once, "keras_tuner.src.engine.base_tuner")
    seed = 1 + zlib.crc32(repr(sorted(each.address for each in members)).encode()) % 10_000  # KerasTuner's own range
    wrapt.register_post_import_hook(partial(_seed_alike, seed), "keras_tuner.src.engine.oracle")


def _variables(index: int, address: str) -> dict[str, str]:
    """Return KerasTuner's variables of a worker; the first one serves at the port that is reserved for TensorFlow.

    Examples
    --------
    >>> _variables(2, "10.0.0.7:4000")["KERASTUNER_TUNER_ID"]
    'tuner1'
    """
    host, _, port = address.rpartition(":")
    return {_TUNER_ID: f"tuner{index - 1}" if index else _CHIEF, _IP: host, _PORT: port}


def _set(variables: Mapping[str, str], program: bytes, _: ModuleType) -> None:
    if any(name in os.environ for name in variables):
        return
    if names_strategy(program):
        return
    os.environ.update(variables)
    if variables[_TUNER_ID] == _CHIEF:
        text = "KerasTuner searches on all workers together: this one runs the oracle, the others the trials"
        _log.warning("%s (to search on each by itself, set %s)", text, _TUNER_ID)


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


def _overwrite_once(module: Any) -> None:
    """Have only the oracle's process remove the results of an earlier search, which all others share."""

    def make(wrapped: Any, _: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if os.environ.get(_IP) and os.environ.get(_TUNER_ID) != _CHIEF and options.get("overwrite"):
            options = {**options, "overwrite": False}
        return wrapped(*args, **options)

    wrapt.wrap_function_wrapper(module, "BaseTuner.__init__", make)


def _seed_alike(seed: int, module: Any) -> None:
    """Have the oracles of workers that train one model together draw the same trials."""

    def make(wrapped: Any, _: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        bound = inspect.signature(wrapped).bind(*args, **options).arguments
        if not bound.get("seed") and not any(name in os.environ for name in (_TUNER_ID, _IP, _PORT)):
            bound["seed"] = seed
        return wrapped(**bound)

    wrapt.wrap_function_wrapper(module, "Oracle.__init__", make)


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

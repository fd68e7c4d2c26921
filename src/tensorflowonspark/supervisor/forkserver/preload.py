"""Imports of a fork server, and the check that forking is safe after them."""

import gc
import importlib
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

from tensorflowonspark.keras.hooks import keras_backend, repairing_modules

# Modules of a node, by the backend of Keras. That of the data sets imports TensorFlow, which imports Keras; a program
# on JAX may do without TensorFlow, and imports it by itself.
_MODULES = {
    "tensorflow": ("tensorflowonspark.node.feed.dataset", "tensorflowonspark.keras.resuming_callback"),
    "jax": ("keras",),
}
_RUNTIMES = ("jax", "torch")  # of Keras's backends beside TensorFlow


def preload(check: Callable[[], None] = lambda: None, niceness: int = 0) -> None:
    """Import the modules that nodes need.

    `check` is called each second until they are imported, which takes long on a busy machine. If TensorFlow, or Keras
    with JAX, is not installed, or an import fails, it raises `ImportError`.
    """
    failures: list[BaseException] = []

    def load() -> None:
        # In a separate thread, since a process without root privileges can't undo a lower priority.
        with suppress(PermissionError):  # the executor's own is lower still
            if niceness:
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
        try:
            backend = keras_backend()
            with _without_other_runtimes(backend):
                # And what the import hooks for Keras would import in each node; these depend on the version of Keras.
                own = ("pyarrow", "tensorflowonspark.node.main", *_MODULES[backend], *repairing_modules(backend))
                for name in own:
                    importlib.import_module(name)
                if backend == "tensorflow":
                    _ = importlib.import_module("tensorflow").keras.layers  # Keras 3 or tf_keras, by the environment
        except BaseException as error:  # some libraries raise SystemExit
            failures.append(error)

    thread = threading.Thread(target=load)
    thread.start()
    while thread.is_alive():
        thread.join(1.0)
        check()
    if failures:
        raise ImportError(str(failures[0])) from failures[0]
    gc.collect()
    gc.freeze()  # the first collection in a node would otherwise write to all pages, and so copy them


class _Absent(MetaPathFinder):
    """Finds none of some packages, although one may be installed."""

    def __init__(self, packages: Collection[str]) -> None:
        self._packages = packages

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:  # noqa: ARG002 - Python's names
        """Raise the error of a package that is not installed."""
        if name.partition(".")[0] in self._packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@contextmanager
def _without_other_runtimes(backend: str) -> Iterator[None]:
    """Have nobody import another runtime for the duration of a block: TensorFlow imports JAX where it is installed."""
    absent = _Absent(_others(backend))
    sys.meta_path.insert(0, absent)
    try:
        yield
    finally:
        sys.meta_path.remove(absent)


def _others(backend: str) -> list[str]:
    return [name for name in _RUNTIMES if name != backend]


def why_unsafe(own_threads: int) -> str:
    """Return the reason why this process may not fork; empty if it may.

    `own_threads` is the number of Python threads that are known to hold no locks.
    """
    if threading.active_count() > own_threads:
        return f"threads are running: {threading.enumerate()}"
    others = [name for name in _others(keras_backend()) if name in sys.modules]
    if others:
        return f"{others[0]} is imported"
    if "libcuda.so" in Path("/proc/self/maps").read_text():
        return "the GPUs' driver is loaded"
    context = getattr(sys.modules.get("tensorflow.python.eager.context"), "_context", None)
    if getattr(context, "_initialized", False):
        return "TensorFlow's runtime has started"
    if "jax" in sys.modules:
        bridge = sys.modules.get("jax._src.xla_bridge")
        if getattr(bridge, "backends_are_initialized", lambda: True)():
            return "JAX's runtime has started, or this version of JAX does not say"
    return ""

"""Imports of a fork server, and the check that forking is safe after them."""

import gc
import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

from tensorflowonspark.keras.hooks import repairing_modules

# Modules of a node; that of the data sets imports TensorFlow, which imports Keras.
_MODULES = (
    "pyarrow",
    "tensorflowonspark.node.main",
    "tensorflowonspark.node.feed.dataset",
    "tensorflowonspark.keras.resuming",
)
_OTHER_RUNTIMES = ("jax", "torch")  # Keras's other backends start threads, and warn of every fork


def preload(check: Callable[[], None] = lambda: None, niceness: int = 0) -> None:
    """Import the modules that nodes need.

    Parameters
    ----------
    check : callable
        Called each second until they are imported, which takes long on a busy machine.
    niceness : int
        Of the import.

    Raises
    ------
    ImportError
        If TensorFlow is not installed, or an import fails.
    """
    failures: list[BaseException] = []

    def load() -> None:
        # In a separate thread, since a process without root privileges can't undo a lower priority.
        with suppress(PermissionError):  # the executor's own is lower still
            if niceness:
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
        try:
            with _without_other_runtimes():
                # And what the import hooks for Keras would import in each node; these depend on the version of Keras.
                for name in (*_MODULES, *repairing_modules()):
                    importlib.import_module(name)
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
    """Finds no package of `_OTHER_RUNTIMES`, although one may be installed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:  # noqa: ARG002 - Python's names
        """Raise the error of a package that is not installed."""
        if name.partition(".")[0] in _OTHER_RUNTIMES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@contextmanager
def _without_other_runtimes() -> Iterator[None]:
    """Have nobody import another runtime for the duration of a block: TensorFlow imports JAX where it is installed."""
    absent = _Absent()
    sys.meta_path.insert(0, absent)
    try:
        yield
    finally:
        sys.meta_path.remove(absent)


def why_unsafe(own_threads: int) -> str:
    """Return the reason why this process may not fork; empty if it may.

    Parameters
    ----------
    own_threads : int
        Number of Python threads that are known to hold no locks.
    """
    if threading.active_count() > own_threads:
        return f"threads are running: {threading.enumerate()}"
    others = [name for name in _OTHER_RUNTIMES if name in sys.modules]
    if others:
        return f"{others[0]} is imported"
    if "libcuda.so" in Path("/proc/self/maps").read_text():
        return "the GPUs' driver is loaded"
    context = getattr(sys.modules.get("tensorflow.python.eager.context"), "_context", None)
    if getattr(context, "_initialized", False):
        return "TensorFlow's runtime has started"
    return ""

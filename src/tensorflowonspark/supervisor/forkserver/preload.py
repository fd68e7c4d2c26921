"""Imports of a fork server, and the check that forking is safe after them."""

import gc
import importlib
import os
import sys
import threading
from pathlib import Path

from tensorflowonspark.keras import repairing_modules

__all__ = ["preload", "why_unsafe"]

_NICENESS = 5  # the programs that run meanwhile come first
# The node's own modules, of which the data sets import TensorFlow, and TensorFlow Keras.
_MODULES = (
    "pyarrow.flight",
    "tensorflowonspark.node.main",
    "tensorflowonspark.node.feed.dataset",
    "tensorflowonspark.keras.resuming",
)
_OTHER_RUNTIMES = ("jax", "torch")  # Keras's other backends have threads of their own, and warn of every fork


def preload() -> None:
    """Import all that nodes need.

    Raises
    ------
    ImportError
        If TensorFlow is not there, or anything else fails.
    """
    failures: list[BaseException] = []

    def load() -> None:
        # A thread of its own is slowed down, since who is not root can't take that back for the process.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        try:
            # What Keras's hooks would import next in each node. They need Keras itself, which may be another one.
            for name in (*_MODULES, *repairing_modules()):
                importlib.import_module(name)
            _ = importlib.import_module("tensorflow").keras.layers  # Keras 3 or tf_keras, as the environment says
        except BaseException as error:  # some libraries leave with SystemExit
            failures.append(error)

    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
    if failures:
        raise ImportError(str(failures[0])) from failures[0]
    gc.collect()
    gc.freeze()  # else the first collection in each node would write to, and so copy, all of it


def why_unsafe(own_threads: int) -> str:
    """Return why this process may not fork; empty if it may.

    Parameters
    ----------
    own_threads : int
        How many threads of Python's are known, and hold no locks.
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

"""The end of a strategy's iterators: in a thread of its own, so that no step waits for it.

TensorFlow destroys an iterator in the thread that drops the last reference to it, and waits there for the thread that
tunes the iterator's buffers. That thread misses its cancellation now and then, and then sleeps until its next round:
up to 60 seconds for an iterator that is as old. A strategy makes two iterators or more for each pass over a dataset.
They refer to each other, so that Python's garbage collector destroys those of several passes at once, in the midst of a
step: this worker stands still for minutes, and the others wait for it.

The thread may be in the midst of that when the program ends. A node's process then ends without the interpreter's
finalization (`node.run`), which would abort it.
"""

import threading
import time
import weakref
from queue import SimpleQueue
from types import ModuleType
from typing import Any

from tensorflowonspark.keras import wrap

__all__ = ["end_apart"]

_DELAY_SECONDS = 1.0
_ended: "SimpleQueue[tuple[float, list[Any]]]" = SimpleQueue()  # its put may be called by the garbage collector
_started = threading.Lock()


def end_apart(module: ModuleType) -> None:
    """Have the iterators of strategies destroyed in another thread (called after the import of their module)."""

    def make(wrapped: Any, iterator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        wrapped(*args, **kwargs)
        if kwargs.get("components") is None:  # else it shares the resources of another one
            resources = [
                iterator._multi_device_iterator_resource,
                *(each._iterator_resource for each in iterator._device_iterators),
            ]
            if all(hasattr(each, "numpy") for each in resources):  # they are no symbols of a graph
                _start()
                weakref.finalize(iterator, _end, resources).atexit = False

    wrap(module, "OwnedMultiDeviceIterator.__init__", make)


def _end(resources: list[Any]) -> None:
    _ended.put((time.monotonic() + _DELAY_SECONDS, resources))


def _start() -> None:
    if _started.acquire(blocking=False):  # once in this process
        threading.Thread(target=_destroy, name="iterators", daemon=True).start()


def _destroy() -> None:
    """Drop the last references to resources, when the garbage collector has dropped all others."""
    while True:
        due, resources = _ended.get()
        time.sleep(max(0.0, due - time.monotonic()))
        resources.clear()

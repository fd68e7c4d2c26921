"""Destruction of a strategy's iterators in separate threads, so that no step waits for it.

TensorFlow destroys an iterator in the thread that drops the last reference to it, and waits there for the thread that
tunes the iterator's buffers. That thread sometimes misses its cancellation, and sleeps until its next round: up to 60
seconds for an iterator of that age. A strategy makes two iterators or more for each pass over a dataset. They refer to
each other, so that Python's garbage collector destroys those of several passes at once, during a step: this worker
stops for minutes, and the others wait for it. Plain iterators of datasets are destroyed where the program drops them,
as in TensorFlow; those that the garbage collector destroys are destroyed in a thread as well.

Such a thread may still run when the program ends. The interpreter's finalization would abort then, so a node's process
exits without it (`node.main`).
"""

import gc
import sys
import threading
import time
import weakref
from dataclasses import dataclass, field
from queue import SimpleQueue
from types import ModuleType, SimpleNamespace
from typing import Any

from tensorflowonspark.keras.hooks import wrap

_CHECK_SECONDS = 1.0
_dropped: "SimpleQueue[_Dropped]" = SimpleQueue()  # the garbage collector may call its put
_started = threading.Lock()
_collecting = SimpleNamespace(thread=0)  # the thread that runs the garbage collector
_FINALIZER = "_tfos_finalizer"  # an attribute of plain iterators


@dataclass
class _Dropped:
    """The resources of a dropped iterator, and the time of the next check for other references to them."""

    resources: list[Any]
    due: float = field(default_factory=lambda: time.monotonic() + _CHECK_SECONDS)
    unreferenced: bool = False  # by anything else at the last check

    def next_check(self) -> "_Dropped | None":
        """Return the next check, or None if nothing else refers to the resources.

        There are two checks, since a dataset may refer to them too, which the garbage collector destroys meanwhile.
        """
        unreferenced = all(sys.getrefcount(self.resources[number]) <= _OWN for number in range(len(self.resources)))
        return None if unreferenced and self.unreferenced else _Dropped(self.resources, unreferenced=unreferenced)


_OWN = 2  # references to a resource: of the list, and of the function that counts them


def destroy_in_threads(module: ModuleType) -> None:
    """Have the iterators of strategies destroyed in another thread (called after the import of their module)."""

    def make(wrapped: Any, iterator: Any, /, *args: Any, **kwargs: Any) -> None:
        wrapped(*args, **kwargs)
        if kwargs.get("components") is None:  # else it shares another iterator's resources
            for each in iterator._device_iterators:
                if hasattr(each, _FINALIZER):
                    getattr(each, _FINALIZER).detach()
            resources = [
                iterator._multi_device_iterator_resource,
                *(each._iterator_resource for each in iterator._device_iterators),
            ]
            if all(hasattr(each, "numpy") for each in resources):  # not symbols of a graph
                _start()
                weakref.finalize(iterator, _drop, resources).atexit = False

    wrap(module, "OwnedMultiDeviceIterator.__init__", make)


def destroy_garbage_in_threads(module: ModuleType) -> None:
    """Have plain iterators that are garbage destroyed in another thread (called after the import of their module)."""

    def make(wrapped: Any, iterator: Any, /, *args: Any, **kwargs: Any) -> None:
        wrapped(*args, **kwargs)
        if kwargs.get("components") is None and hasattr(iterator._iterator_resource, "numpy"):
            _start()
            finalizer = weakref.finalize(iterator, _drop_garbage, [iterator._iterator_resource])
            finalizer.atexit = False
            setattr(iterator, _FINALIZER, finalizer)

    wrap(module, "OwnedIterator.__init__", make)
    gc.callbacks.append(_note_collection)


def _note_collection(phase: str, _: dict[str, int]) -> None:
    _collecting.thread = threading.get_ident() if phase == "start" else 0


def _drop_garbage(resources: list[Any]) -> None:
    if _collecting.thread == threading.get_ident():
        _drop(resources)


def _drop(resources: list[Any]) -> None:
    _dropped.put(_Dropped(resources))


def _start() -> None:
    if _started.acquire(blocking=False):  # once in this process
        threading.Thread(target=_destroy, name="iterators", daemon=True).start()


def _destroy() -> None:
    """Drop the last references to resources, after the garbage collector has dropped all others."""
    while True:
        dropped = _dropped.get()
        time.sleep(max(0.0, dropped.due - time.monotonic()))
        later = dropped.next_check()
        if later is None:  # a thread for each, since each may take a minute
            threading.Thread(target=dropped.resources.clear, name="iterator", daemon=True).start()
        else:
            _dropped.put(later)
        del dropped, later  # else they remain until the next one

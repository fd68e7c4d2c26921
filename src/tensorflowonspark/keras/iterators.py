"""The end of a strategy's iterators: each in a thread of its own, so that no step waits for it.

TensorFlow destroys an iterator in the thread that drops the last reference to it, and waits there for the thread that
tunes the iterator's buffers. That thread misses its cancellation now and then, and then sleeps until its next round:
up to 60 seconds for an iterator that is as old. A strategy makes two iterators or more for each pass over a dataset.
They refer to each other, so that Python's garbage collector destroys those of several passes at once, in the midst of a
step: this worker stands still for minutes, and the others wait for it. Plain iterators of datasets end where the
program drops them, as ever; those that the garbage collector destroys end in a thread as well.

Such a thread may be in the midst of that when the program ends. A node's process then ends without the interpreter's
finalization (`node.run`), which would abort it.
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

from tensorflowonspark.keras import wrap

__all__ = ["end_apart", "end_garbage_apart"]

_LOOK_SECONDS = 1.0
_ended: "SimpleQueue[_Ended]" = SimpleQueue()  # its put may be called by the garbage collector
_started = threading.Lock()
_collecting = SimpleNamespace(thread=0)  # in which the garbage collector runs
_FINALIZER = "_tfos_finalizer"  # an attribute of plain iterators


@dataclass
class _Ended:
    """The resources of an iterator that has ended, and when to look whether anything else still refers to them."""

    resources: list[Any]
    due: float = field(default_factory=lambda: time.monotonic() + _LOOK_SECONDS)
    alone: bool = False  # nothing did at the last look

    def next_look(self) -> "_Ended | None":
        """Return what to look at later, or None if nothing refers to the resources any more.

        Two looks, since a dataset may refer to them too, which the garbage collector destroys at the same time.
        """
        alone = all(sys.getrefcount(self.resources[place]) <= _OWN for place in range(len(self.resources)))
        return None if alone and self.alone else _Ended(self.resources, alone=alone)


_OWN = 2  # references to a resource: the list's, and that of the function which counts them


def end_apart(module: ModuleType) -> None:
    """Have the iterators of strategies destroyed in another thread (called after the import of their module)."""

    def make(wrapped: Any, iterator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        wrapped(*args, **kwargs)
        if kwargs.get("components") is None:  # else it shares the resources of another one
            for each in iterator._device_iterators:
                if hasattr(each, _FINALIZER):
                    getattr(each, _FINALIZER).detach()
            resources = [
                iterator._multi_device_iterator_resource,
                *(each._iterator_resource for each in iterator._device_iterators),
            ]
            if all(hasattr(each, "numpy") for each in resources):  # they are no symbols of a graph
                _start()
                weakref.finalize(iterator, _end, resources).atexit = False

    wrap(module, "OwnedMultiDeviceIterator.__init__", make)


def end_garbage_apart(module: ModuleType) -> None:
    """Have plain iterators that are garbage destroyed in another thread (called after the import of their module)."""

    def make(wrapped: Any, iterator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        wrapped(*args, **kwargs)
        if kwargs.get("components") is None and hasattr(iterator._iterator_resource, "numpy"):
            _start()
            finalizer = weakref.finalize(iterator, _end_garbage, [iterator._iterator_resource])
            finalizer.atexit = False
            setattr(iterator, _FINALIZER, finalizer)

    wrap(module, "OwnedIterator.__init__", make)
    gc.callbacks.append(_note_collection)


def _note_collection(phase: str, _: dict[str, int]) -> None:
    _collecting.thread = threading.get_ident() if phase == "start" else 0


def _end_garbage(resources: list[Any]) -> None:
    if _collecting.thread == threading.get_ident():
        _end(resources)


def _end(resources: list[Any]) -> None:
    _ended.put(_Ended(resources))


def _start() -> None:
    if _started.acquire(blocking=False):  # once in this process
        threading.Thread(target=_destroy, name="iterators", daemon=True).start()


def _destroy() -> None:
    """Have the last references to resources dropped, when the garbage collector has dropped all others."""
    while True:
        ended = _ended.get()
        time.sleep(max(0.0, ended.due - time.monotonic()))
        later = ended.next_look()
        if later is None:  # a thread for each, since each may take a minute
            threading.Thread(target=ended.resources.clear, name="iterator", daemon=True).start()
        else:
            _ended.put(later)
        del ended, later  # else they live until the next one

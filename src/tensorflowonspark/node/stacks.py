"""The Python stacks of all threads of a node: as its own thread formats them, or as a signal's handler writes them.

The first has lines of source and names of threads, and needs Python's lock. The second, of `faulthandler`, needs no
lock, and so works while native code holds that; it writes to a file that the supervisor reads.
"""

import faulthandler
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from itertools import dropwhile
from pathlib import Path
from types import FrameType

# One of those that neither Python, TensorFlow nor a JVM in the process uses. It is of use only once a handler is there:
# without one it would end the process.
STACKS_SIGNAL = signal.SIGRTMIN + 9


def stacks_file(directory: str) -> Path:
    """Return the file in a node's private directory to which the handler writes."""
    return Path(directory, "stacks")


def write_on_signal(directory: str) -> None:
    """Have this process write the stacks of its threads to its file when the signal comes."""
    file = stacks_file(directory).open("ab", buffering=0)  # it stays open, for the handler
    faulthandler.register(STACKS_SIGNAL, file=file, all_threads=True)


def all_stacks() -> str:
    """Return the stacks of all threads but this one, the main thread first.

    Examples
    --------
    >>> "in all_stacks" in all_stacks()
    False
    """
    threads = {each.ident: each for each in threading.enumerate()}
    main, own = threading.main_thread().ident, threading.get_ident()
    frames: Mapping[int, FrameType] = sys._current_frames()
    parts = []
    for ident in sorted(frames, key=lambda each: (each != main, each)):
        if ident != own:
            name = threads[ident].name if ident in threads else "a thread that Python has not started"
            stack = list(
                dropwhile(lambda each: each.filename == threading.__file__, traceback.extract_stack(frames[ident]))
            )
            parts.append(f"Thread {name} (most recent call last):\n{''.join(traceback.format_list(stack))}")
    return "\n".join(parts)

"""Forked children of a node's process: the program's own helpers, which never act for the node.

A child inherits what its parent has in memory: the pipe to the supervisor, exit functions that remove the parent's
files, the stack with our own code below the program's. None of it is the child's to use.
"""

import atexit
import os
import sys
import threading
import traceback
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

__all__ = ["children_end_here", "keep_exit_functions"]

_OWN = str(Path(__file__).parents[1])


def keep_exit_functions() -> None:
    """Have children that this process forks from now on begin without its exit functions and finalizers.

    These would remove this process's temporary files while it still needs them. ``multiprocessing`` does the same.
    """
    os.register_at_fork(after_in_child=_forget_exit_functions)


def _forget_exit_functions() -> None:
    atexit._clear()
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]


@contextmanager
def children_end_here() -> Iterator[None]:
    """End each process that the block forks where it leaves the block, as a script ends after its last line.

    Without this a child that calls ``sys.exit`` would go on in our own code, and send the driver its own end as the
    node's.
    """
    owner = os.getpid()
    try:
        yield
    except BaseException as error:
        if os.getpid() != owner:
            _end(error)
        raise
    if os.getpid() != owner:
        _end(None)


def _end(error: BaseException | None) -> NoReturn:
    """End this process as the interpreter does: the traceback, its own threads and exit functions, the exit code."""
    code = 0 if error is None else 1
    try:
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
            if code and not isinstance(error.code, int):
                sys.stderr.write(f"{error.code}\n")
        elif error is not None:
            frames = error.__traceback__
            while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_OWN):
                frames = frames.tb_next
            traceback.print_exception(type(error), error, frames)
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):  # the program may have closed it
                stream.flush()
    finally:
        os._exit(code & 0xFF)

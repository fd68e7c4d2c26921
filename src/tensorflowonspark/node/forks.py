"""Forked children of a node's process: isolated helpers of the program.

A child inherits its parent's memory: the pipe to the supervisor, exit functions that remove the parent's files, and the
stack, on which this package's frames call the program's. The child must not use any of these.
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

_PACKAGE = str(Path(__file__).parents[1])


def keep_exit_functions() -> None:
    """Remove exit functions and finalizers from children that this process forks from now on.

    They would remove temporary files that this process still needs. ``multiprocessing`` removes them too.
    """
    os.register_at_fork(after_in_child=_forget_exit_functions)


def _forget_exit_functions() -> None:
    atexit._clear()
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]


@contextmanager
def children_end_here() -> Iterator[None]:
    """End each process that the block forks when it leaves the block, as a script ends after its last line.

    Otherwise a child that calls ``sys.exit`` would continue in this package's code, and report its end as the node's.
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
    """End this process as the interpreter does, with traceback, threads, exit functions and exit code."""
    code = 0 if error is None else 1
    try:
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
            if code and not isinstance(error.code, int):
                sys.stderr.write(f"{error.code}\n")
        elif error is not None:
            frames = error.__traceback__
            while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_PACKAGE):
                frames = frames.tb_next
            traceback.print_exception(type(error), error, frames)
        threading._shutdown()  # type: ignore[attr-defined]  # waits for non-daemon threads
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):  # the program may have closed it
                stream.flush()
    finally:
        os._exit(code & 0xFF)

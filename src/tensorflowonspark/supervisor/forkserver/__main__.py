"""Entry point of a fork server and of its forked nodes."""

import os
import sys
from pathlib import Path

from tensorflowonspark.keras.hooks import keras_backend
from tensorflowonspark.processes import parent_pipe, watch_process
from tensorflowonspark.supervisor.forkserver.compatibility import ImportProperties
from tensorflowonspark.supervisor.forkserver.preload import preload, why_unsafe
from tensorflowonspark.supervisor.forkserver.server_directory import SERVER, ServerDirectory
from tensorflowonspark.supervisor.forkserver.set_aside import set_aside

_KNOWN_THREADS = 2  # the main thread, and the one that watches the executor


def _serve(path: Path, executor: int, idle_seconds: float, niceness: int) -> bool:
    """Run the fork server of an executor; return True in each forked node."""
    properties, search_path = ImportProperties(dict(os.environ)), list(sys.path)
    directory = ServerDirectory(path, make=True)
    lock = directory.lock(SERVER)
    if lock is None:  # another process was faster
        return False
    directory.hide()

    def end() -> None:
        directory.remove()
        os._exit(0)

    def end_with_application() -> None:
        if not directory.exists():
            end()

    watch_process(executor, end)
    try:
        preload(end_with_application, niceness)
        usable = not why_unsafe(_KNOWN_THREADS)
    except ImportError:
        usable = False
    if not usable:
        directory.remove()
        return False
    from tensorflowonspark.supervisor.forkserver.forkserver import (
        ForkServerProcess,  # which imports what a node does, and so comes last
    )

    return ForkServerProcess(directory, lock, properties, search_path, idle_seconds).run()


if __name__ == "__main__":
    if _serve(*parent_pipe().recv()):
        from tensorflowonspark.node.main import run_node

        if keras_backend() == "jax":  # the workers become one JAX program when theirs imports JAX
            set_aside("jax", "keras")
        run_node(parent_pipe())

"""Entry point of a fork server, and of the nodes that are forked from it."""

import os
import sys
from pathlib import Path

from tensorflowonspark.processes import parent_pipe, watch_process
from tensorflowonspark.supervisor.forkserver.compatibility import ImportProperties
from tensorflowonspark.supervisor.forkserver.preload import preload, why_unsafe
from tensorflowonspark.supervisor.forkserver.rendezvous import SERVER, Rendezvous

_KNOWN_THREADS = 2  # the main one, and the one that watches the executor


def _serve(path: Path, executor: int, idle_seconds: float) -> bool:
    """Be the fork server of an executor; return True in each node that has been forked."""
    outfit, search = ImportProperties(dict(os.environ)), list(sys.path)
    home = Rendezvous(path, make=True)
    lock = home.lock(SERVER)
    if lock is None:  # another one was faster
        return False
    home.hide()

    def end() -> None:
        home.remove()
        os._exit(0)

    watch_process(executor, end)
    try:
        preload()
        usable = not why_unsafe(_KNOWN_THREADS)
    except ImportError:
        usable = False
    if not usable:
        home.remove()
        return False
    from tensorflowonspark.supervisor.forkserver.server import (
        Server,  # which imports what a node does, and so comes last
    )

    return Server(home, lock, outfit, search, idle_seconds).run()


if __name__ == "__main__":
    if _serve(*parent_pipe().recv()):
        from tensorflowonspark.node.main import run_node

        run_node(parent_pipe())

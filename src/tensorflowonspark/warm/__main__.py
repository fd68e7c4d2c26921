"""Entry of a fork server's process, and of the nodes that are forked from it."""

import os
import sys
from pathlib import Path

from tensorflowonspark.children import parent_pipe
from tensorflowonspark.ends import watch_process
from tensorflowonspark.warm.home import SERVER, Home
from tensorflowonspark.warm.outfit import Outfit
from tensorflowonspark.warm.preload import preload, why_unsafe

_KNOWN_THREADS = 2  # the main one, and the one that watches the executor


def _serve(path: Path, executor: int, idle_seconds: float) -> bool:
    """Be the fork server of an executor; return True in each node that has been forked."""
    outfit, search = Outfit(dict(os.environ)), list(sys.path)
    home = Home(path, make=True)
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
    from tensorflowonspark.warm.server import Server  # which imports what a node does, and so comes last

    return Server(home, lock, outfit, search, idle_seconds).run()


if __name__ == "__main__":
    if _serve(*parent_pipe().recv()):
        from tensorflowonspark.node.run import run_node

        run_node(parent_pipe())

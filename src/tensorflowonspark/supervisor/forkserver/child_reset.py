"""Reset of a forked process to the state of one that was started with ``exec``."""

import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tensorflowonspark.processes import FAMILY, process_name

__all__ = ["reset_child"]


def reset_child(environment: Mapping[str, str], arguments: Sequence[str], path: Sequence[str], output: int) -> None:
    """Give this process a session, an environment, output and random numbers of its own.

    Parameters
    ----------
    environment : mapping
        The whole environment.
    arguments : sequence of str
        What ``sys.argv`` is to be.
    path : sequence of str
        What ``sys.path`` is to be.
    output : int
        Where standard output and standard error go together; it is closed.
    """
    os.setsid()
    # What tools show, where the command line is still the fork server's, and by which the node's family is found.
    Path("/proc/self/comm").write_text(process_name(environment.get(FAMILY, "tfos-node")))
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    sys.argv[:] = arguments
    sys.path[:] = path
    tempfile.tempdir = None  # found again in this environment
    np.random.seed()  # `random` does it by itself
    multiprocessing.current_process().authkey = os.urandom(32)

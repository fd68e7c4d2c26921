"""The start of TensorFlow in Spark's Python workers, without the lines of it that are for TensorFlow's developers."""

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from tensorflowonspark.supervisor.output import level_of

_STDERR = 2  # the file descriptor to which native code writes
_LEVEL = "TF_CPP_MIN_LOG_LEVEL"


@contextmanager
def quiet_start() -> Iterator[None]:
    """Leave out of standard error, in a block that starts TensorFlow, the lines that a node's output has not either.

    TensorFlow 2.21 prints some whatever `TF_CPP_MIN_LOG_LEVEL` is. The other lines are written when the block ends. If
    the user has set that variable, all lines are written at once.
    """
    if _LEVEL in os.environ:
        yield
        return
    os.environ[_LEVEL] = "2"
    with tempfile.TemporaryFile() as lines:
        own = os.dup(_STDERR)
        os.dup2(lines.fileno(), _STDERR)
        try:
            yield
        finally:
            os.dup2(own, _STDERR)
            os.close(own)
            lines.seek(0)
            for line in lines:
                if level_of(line.decode(errors="replace")) > logging.DEBUG:
                    os.write(_STDERR, line)

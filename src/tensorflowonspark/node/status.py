"""Status of a node's program: what it waits for, and where it is."""

import sys
import sysconfig
import threading
import traceback
from pathlib import Path

from tensorflowonspark.messages import NodeStatus, WaitsFor

__all__ = ["node_status"]

_TENSORFLOW = str(Path("tensorflow", "python"))
_OWN = str(Path(__file__).parents[1])
_STANDARD = sysconfig.get_path("stdlib")
_FILES = (str(Path("tensorflowonspark", "storage")), f"{Path('fsspec')}/")


def node_status(waits_for: WaitsFor, in_epoch: bool) -> NodeStatus:
    """Return what the main thread is at; called in any other thread.

    Parameters
    ----------
    waits_for : WaitsFor
        What is known of it otherwise.
    in_epoch : bool
        Whether it is in the midst of an epoch.
    """
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    stack = traceback.extract_stack(frame) if frame is not None else traceback.StackSummary()
    # TensorFlow runs eager collectives in a pool of threads, and waits for these by means of the standard library.
    waiting = next((each.filename for each in reversed(stack) if not _is_standard(each.filename)), "")
    in_tensorflow = _TENSORFLOW in waiting
    first = next((at for at, each in enumerate(stack) if _is_users(each.filename)), 0)
    if any(part in each.filename for each in stack for part in _FILES):
        waits_for = WaitsFor.STORAGE
    return NodeStatus(waits_for, in_tensorflow, in_epoch, "".join(traceback.format_list(stack[first:])))


def _is_standard(filename: str) -> bool:
    return filename.startswith((_STANDARD, "<frozen")) and "-packages" not in filename


def _is_users(filename: str) -> bool:
    return not (filename.startswith((_OWN, "<frozen")))

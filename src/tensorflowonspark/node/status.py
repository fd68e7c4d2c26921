"""What the main thread of a node does, by its stack."""

import sys
import sysconfig
import threading
import traceback
from pathlib import Path

from tensorflowonspark.messages import NodeStatus, WaitsFor

_TENSORFLOW = str(Path("tensorflow", "python"))
_JAX = (str(Path("jax", "_src")), str(Path("jax", "experimental")))
_PACKAGE = str(Path(__file__).parents[1])
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")
_FILE_SYSTEMS = (str(Path("tensorflowonspark", "storage")), f"{Path('fsspec')}/")


def node_status(waits_for: WaitsFor, in_epoch: bool) -> NodeStatus:
    """Return what the main thread does, seen from another one: it waits for this, or what its stack shows."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    stack = traceback.extract_stack(frame) if frame is not None else traceback.StackSummary()
    # TensorFlow runs eager collectives in a pool of threads, for which it waits in functions of the standard library.
    waiting = next((each.filename for each in reversed(stack) if not _is_standard(each.filename)), "")
    in_tensorflow = _TENSORFLOW in waiting or any(part in waiting for part in _JAX)
    first = next((at for at, each in enumerate(stack) if _is_user_code(each.filename)), 0)
    if any(part in each.filename for each in stack for part in _FILE_SYSTEMS):
        waits_for = WaitsFor.STORAGE
    return NodeStatus(waits_for, in_tensorflow, in_epoch, "".join(traceback.format_list(stack[first:])))


def _is_standard(filename: str) -> bool:
    return filename.startswith((_STANDARD_LIBRARY, "<frozen")) and "-packages" not in filename


def _is_user_code(filename: str) -> bool:
    return not (filename.startswith((_PACKAGE, "<frozen")))

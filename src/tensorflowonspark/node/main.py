"""Main routine of a node: set up, wait for the other nodes, run the user's function, report its end.

A node whose function has ended stays until the whole cluster has: were it to leave early, TensorFlow's collectives
would take its peers down while they still export or evaluate.
"""

import atexit
import logging
import os
import pickle
import re
import sys
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection

import cloudpickle
import wrapt

from tensorflowonspark import keras, storage
from tensorflowonspark.config import Job, tf_config
from tensorflowonspark.errors import FailureKind, error_text
from tensorflowonspark.keras import adapting
from tensorflowonspark.messages import Failed, Member, NodeReady, Returned, TensorFlowImported
from tensorflowonspark.node.collectives import Collectives
from tensorflowonspark.node.context import Context
from tensorflowonspark.node.driver_link import Link, NodeSetup
from tensorflowonspark.node.feed.server import FeedServer
from tensorflowonspark.node.forks import children_end_here, keep_exit_functions
from tensorflowonspark.transport import MESSAGE_BYTES
from tensorflowonspark.transport.shared_file import allow_many_files

__all__ = ["run_node"]

# What TensorFlow, or our own transport, raises in a worker whose peer is gone: a consequence, never the cause.
_PEER_ERRORS = {"UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError", "ConnectionLost"}

_RESULT_BYTES = MESSAGE_BYTES - (1 << 20)  # what is around the result in its message is far less than a megabyte

# Of a traceback, which ends with the error's own text: from its beginning, and of its end.
_FIRST, _LAST = 24_000, 8_000

# An error of ours in a graph, where TensorFlow has put it into one of its own.
_OURS = re.compile(r"^tensorflowonspark\.errors\.(\w+: .+)$", re.MULTILINE)


def run_node(pipe: Connection) -> None:
    """Run this process as a node; never returns normally before the cluster ends."""
    setup: NodeSetup = pipe.recv()
    keep_exit_functions()
    _show_warnings()
    allow_many_files()
    storage.use(setup.hadoop)
    link = Link(pipe)
    link.watch(setup.supervisor, setup.silence)
    receiver = FeedServer(setup, link.send) if setup.feed_socket else None
    link.send(NodeReady(receiver.socket, receiver.port) if receiver else NodeReady())
    members = link.wait_for_members()
    configure_tensorflow(members, setup)
    if setup.role in setup.spec.fed and len(setup.spec.fed) > 1:
        adapting.connect(Collectives(setup, link))
    if "tensorflow" not in sys.modules:
        wrapt.register_post_import_hook(lambda _: link.send(TensorFlowImported()), "tensorflow")
    link.send(_outcome(setup, members, link, receiver))
    link.wait_for_stop()
    # The program's own exit functions run, and TensorFlow's, which remove what it left in the temporary directory. One
    # that hangs is ended by the supervisor.
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # the program may have closed it, or taken it away
            stream.flush()
    # Interpreter and TensorFlow are not taken down piece by piece: workers that leave a collective one by one
    # report each other as lost, and it takes longer than the end of the process.
    os._exit(0)


def _show_warnings() -> None:
    """Have our own log lines carry their level, by which the supervisor and the driver know them."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(logging.BASIC_FORMAT))
    logger = logging.getLogger("tensorflowonspark")
    logger.addHandler(handler)
    logger.propagate = False


def configure_tensorflow(members: tuple[Member, ...], setup: NodeSetup) -> None:
    """Set what TensorFlow and Keras read from the environment when they are imported or start."""
    addresses = {member.role: member.address for member in members}
    os.environ["TF_CONFIG"] = tf_config(addresses, setup.role)
    me = next(member for member in members if member.number == setup.number)
    if me.gpus or setup.role.job is Job.PS:
        # A parameter server computes nothing that a GPU would be good for, but would take its memory.
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(me.gpus)
    keras.install(setup.program)
    keras.keep_sources(setup.local_directory)


def _outcome(
    setup: NodeSetup, members: tuple[Member, ...], link: Link, receiver: FeedServer | None
) -> Returned | Failed:
    """Run the user's function; its result or its failure."""
    try:
        with children_end_here():
            function, args = cloudpickle.loads(setup.program)
        context = Context(setup, members, link, receiver)
        try:
            with children_end_here():
                result = function(args, context)
        except BaseException:
            with suppress(OSError, RuntimeError):  # the program's own error is the one to tell
                context._close()
            raise
        context._close()
        return Returned(_pickled(result))
    except SystemExit as error:
        if error.code in (None, 0):
            return Returned(pickle.dumps(None))
        return Failed(FailureKind.EXITED, f"its program called sys.exit({_code(error)})", traceback=_traceback())
    except BaseException as error:
        kind = FailureKind.PEER_LOST if type(error).__name__ in _PEER_ERRORS else FailureKind.RAISED
        return Failed(kind, _sentence(error), advice=_advice(error), traceback=_traceback())


def _pickled(result: object) -> bytes:
    try:
        data = bytes(cloudpickle.dumps(result))
    except Exception as error:
        raise TypeError(
            f"the program returned a {type(result).__name__}, which can't be sent to the driver: return numbers, "
            f"arrays, or anything else that pickles ({error_text(error)})"
        ) from error
    if len(data) > _RESULT_BYTES:
        raise ValueError(
            f"the program returned a {type(result).__name__} of {len(data)} bytes, and no more than {_RESULT_BYTES} go "
            "to the driver: write it to a file system (ctx.export) and return its path"
        )
    return data


def _sentence(error: BaseException) -> str:
    text = error_text(error, _LAST)
    ours = _OURS.search(text)
    if ours:
        return f"its program raised {ours[1]}"
    first = error_text(Exception((text.strip().splitlines() or [""])[0]))
    return (
        f"its program raised {type(error).__name__}: {first}" if first else f"its program raised {type(error).__name__}"
    )


def _code(error: SystemExit) -> str:
    return repr(error.code) if isinstance(error.code, int) else repr(error_text(error))


def _advice(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"install {error.name} in the executors' Python ({sys.executable}), or ship it with --py-files"
    if type(error).__name__ in _PEER_ERRORS:  # told only if no other node has failed
        return "all nodes are there: the network between the workers may drop packets, or a worker left its loop early"
    if isinstance(error, MemoryError):
        return "use a smaller batch_size or model, or give the executors more memory (spark.executor.memoryOverhead)"
    return ""


def _traceback() -> str:
    """Return the current exception's traceback from the user's own frames on."""
    kind, error, frames = sys.exc_info()
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    try:
        text = "".join(traceback.format_exception(kind, error, frames))
    except Exception as problem:  # a program's own exception may be anything
        text = f"(it can't be shown: {type(problem).__name__}: {error_text(problem)})"
        if frames is not None:
            text = "".join(traceback.format_tb(frames)) + text
    text = text.encode(errors="backslashreplace").decode()
    if len(text) <= _FIRST + _LAST:
        return text
    return f"{text[:_FIRST]}\n... ({len(text) - _FIRST - _LAST:,} characters are left out) ...\n{text[-_LAST:]}"

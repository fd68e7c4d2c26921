"""Main routine of a node: set up, wait for the other nodes, run the user's function, and report the outcome.

A node whose function has ended stays until the whole cluster has ended: if it left early, TensorFlow's collectives
would abort its peers while they still export or evaluate.
"""

import atexit
import inspect
import logging
import os
import pickle
import re
import sys
import time
from bdb import BdbQuit
from contextlib import nullcontext, suppress
from multiprocessing.connection import Connection
from types import ModuleType

import cloudpickle
import pyarrow as pa
import wrapt

from tensorflowonspark import storage
from tensorflowonspark.bytecode import bytecode_problem
from tensorflowonspark.config import ClusterSpec, Job, tf_config
from tensorflowonspark.errors import FailureKind, did_you_mean, error_text
from tensorflowonspark.keras import hooks, round_state, training_events, workers
from tensorflowonspark.keras.jax import jax_processes
from tensorflowonspark.messages import (
    Failed,
    FrameworkImported,
    KerasImported,
    Member,
    NodeReady,
    ProgramBegun,
    Returned,
)
from tensorflowonspark.node.breakpoints import wait_at_breakpoints
from tensorflowonspark.node.collectives import NodeCollectives
from tensorflowonspark.node.context import Context, keep_context
from tensorflowonspark.node.driver_link import Link
from tensorflowonspark.node.feed.feed import Feed
from tensorflowonspark.node.feed.feed_server import FeedServer
from tensorflowonspark.node.feed.selection import text_columns
from tensorflowonspark.node.forks import children_end_here, keep_exit_functions
from tensorflowonspark.node.import_time import measure_import
from tensorflowonspark.node.oracle import share_oracle
from tensorflowonspark.node.ps.coordinator import CoordinatedFeed
from tensorflowonspark.node.rounds.member import RoundMember
from tensorflowonspark.node.setup import NodeSetup
from tensorflowonspark.node.stacks import write_on_signal
from tensorflowonspark.node.tracebacks import program_traceback, subject_of, wrapped_error
from tensorflowonspark.terminal import CONSOLE
from tensorflowonspark.transport import MESSAGE_BYTES
from tensorflowonspark.transport.shared_file import allow_many_files

_log = logging.getLogger(__name__)

# Raised by TensorFlow, or by our transport, in a worker whose peer has ended: a consequence, never the root cause.
_PEER_ERRORS = {"UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError", "ConnectionLost"}
# In the texts of errors of the same kind that JAX raises with several types.
_PEER_TEXTS = re.compile(r"Gloo [\w -]+ failed|coordination service|CoordinationService|NCCL operation .* failed")

_THREADS = "TF_NUM_INTEROP_THREADS"
_RESULT_BYTES = MESSAGE_BYTES - (1 << 20)  # less than a megabyte surrounds the result in its message

_FIRST = 24_000  # characters of an error's text
# Errors whose texts say nothing of columns, or of the names that a method has.
_CAST = re.compile(r"Cast string to \w+ is not supported")
_UNEXPECTED = re.compile(r"(\w+)\.(\w+)\(\) got an unexpected keyword argument '(\w+)'")

# What to do after errors whose texts don't say it.
_ADVICE: dict[type[BaseException], str] = {
    BdbQuit: "a node has no terminal for breakpoint() without nodes=Nodes(breakpoints=True) (tfos run --breakpoints), "
    "with which tfos attach connects one; or call the function where you are, with a stand-in for ctx "
    "(create_autospec(tfos.Context)), or attach an editor: debugpy.listen, then debugpy.wait_for_client",
    ModuleNotFoundError: "install {name} in the executors' Python ({python}), or ship it with --py-files",
    MemoryError: "use a smaller batch_size or model, or give the executors more memory (spark.executor.memoryOverhead)",
}

# An error of this package in a graph, which TensorFlow wraps into one of its own.
_GRAPH_ERROR = "Graph execution error:"
# What precedes the reason of such an error, and what follows it: the places in the program, and the node of the graph.
_NO_REASONS = ("Detected at node", "<stack traces", "File ", "[[", "[Op:")
_CALLED = re.compile(r"^(\w+: .+)\nTraceback \(most recent call last\):", re.MULTILINE)  # from Python, in TensorFlow


def run_node(pipe: Connection) -> None:
    """Run this process as a node until the cluster ends, and exit."""
    setup: NodeSetup = pipe.recv()
    keep_exit_functions()
    _configure_logging()
    allow_many_files()
    storage.use(setup.hadoop)
    write_on_signal(setup.local_directory)
    link = Link(pipe)
    link.pipe.watch(setup.supervisor_pid, setup.config.heartbeat_timeout)
    if setup.config.breakpoints:
        wait_at_breakpoints(link)
    # pyarrow imports pandas when it first makes an array of Python's values, in whichever thread that is: beside a
    # program that imports pandas too, as Keras does, each could get a part of it.
    pa.array([None])
    feed_server = FeedServer(setup, link.send) if setup.feed_socket else None
    link.send(feed_server.ready if feed_server else NodeReady(identity=setup.identity))
    members = link.wait_for_members()
    configure_tensorflow(members, setup)
    if setup.role in setup.spec.fed and len(setup.spec.fed) > 1:
        workers.connect(NodeCollectives(setup, link))
        round_state.connect(RoundMember(setup, link))
        by_role = {member.role: member for member in members}
        fed = [by_role[role] for role in setup.spec.fed]
        _report_backend(link)
        jax_processes.connect(
            [member.address for member in fed],
            setup.spec.fed.index(setup.role),
            replaced=setup.config.restarts_nodes,
            gpus=[(str(member.role), member.host, member.gpus) for member in fed],
        )
    else:
        round_state.connect(None)
    framework = "keras" if hooks.keras_backend() == "jax" else "tensorflow"
    if framework not in sys.modules:
        begun = time.process_time()

        def imported(_: object) -> None:
            link.send(FrameworkImported())
            if problem := bytecode_problem():
                seconds = time.process_time() - begun
                _log.warning("TensorFlow was imported after %.0f s of processor time: %s", seconds, problem)

        wrapt.register_post_import_hook(imported, framework)
        measure_import(framework)
    link.send(run_program(setup, members, link, feed_server))
    link.wait_for_stop()
    # Run the exit functions of the program and of TensorFlow, which remove temporary files. The supervisor kills a node
    # in which one hangs.
    atexit._run_exitfuncs()
    CONSOLE.drain()
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # the program may have closed or removed it
            stream.flush()
    # Without finalizing the interpreter and TensorFlow: workers that leave a collective one by one report each other as
    # lost, and it takes longer.
    os._exit(0)


def _report_backend(link: Link) -> None:
    """Report the backend of Keras when the program imports it: workers with two would wait for each other."""

    def report(module: ModuleType) -> None:
        backend = hooks.keras_backend()
        if module.__name__ == "keras" or backend == "jax":
            link.send(KerasImported(backend))

    # With JAX as its backend Keras waits for the other workers while it is imported.
    for name in ("jax", "keras"):
        wrapt.register_post_import_hook(report, name)


def _configure_logging() -> None:
    """Log with the level in each line, by which supervisor and driver filter."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(logging.BASIC_FORMAT))
    logger = logging.getLogger("tensorflowonspark")
    logger.addHandler(handler)
    logger.propagate = False


def configure_tensorflow(members: tuple[Member, ...], setup: NodeSetup) -> None:
    """Set the environment variables that TensorFlow and Keras read at import and at start."""
    addresses = {member.role: member.address for member in members}
    os.environ["TF_CONFIG"] = tf_config(addresses, setup.role)
    member = next(member for member in members if member.number == setup.number)
    if member.gpus or setup.role.job is Job.PS:
        # A parameter server does not benefit from a GPU, but would allocate its memory.
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(member.gpus)
    if len(members) > 1:
        _allow_waiting(setup.spec)
    hooks.install(setup.config.heartbeat_timeout)
    share_oracle(setup.role, setup.spec, members)
    hooks.keep_sources(setup.local_directory)


def _allow_waiting(spec: ClusterSpec) -> None:
    """Have TensorFlow run operations in two threads where it would take one, as on one processor.

    A server runs a call in one of them, and the call waits for operations of its own.
    """
    given = os.environ.get(_THREADS, "")
    if given == "1" and spec.num_ps:
        _log.warning("%s=1 would have the servers of this cluster wait for ever: this node takes 2", _THREADS)
    elif given or len(os.sched_getaffinity(0)) > 1:
        return
    os.environ[_THREADS] = "2"


def run_program(
    setup: NodeSetup, members: tuple[Member, ...], link: Link, feed_server: FeedServer | None
) -> Returned | Failed:
    """Run the user's function; return its result or failure."""
    subject = "its program"
    try:
        with children_end_here():
            function, args = cloudpickle.loads(setup.config.program)
        subject = subject_of(function)
        context = Context(setup, members, link, feed_server)
        keep_context(context)
        training_events.connect(context._meter)
        link.send(ProgramBegun())
        try:
            with children_end_here():
                result = function(args, context)
        except BaseException as error:
            is_end = isinstance(error, SystemExit) and not _exit_status(error)
            with nullcontext() if is_end else suppress(Exception):  # the program's own error is the one to report
                context._close()
            raise
        context._close()
        return Returned(_pickle(result))
    except SystemExit as error:
        status = _exit_status(error)
        if status == 0:
            return Returned(pickle.dumps(None))
        reason = f"{subject} called sys.exit({_code(error)})"
        return Failed(FailureKind.EXITED, reason, exit_code=status, **vars(program_traceback(error)))
    except BaseException as error:
        kind = FailureKind.PEER_LOST if _is_of_peer(error) else FailureKind.RAISED
        return Failed(
            kind, f"{subject} raised {_summary(error)}", advice=_advice(error), **vars(program_traceback(error))
        )


def _exit_status(error: SystemExit) -> int:
    """Return the status with which a process ends by an error."""
    return 0 if error.code is None else error.code & 0xFF if isinstance(error.code, int) else 1


def _is_of_peer(error: BaseException) -> bool:
    """Return whether an error means that another node has ended."""
    name = type(error).__name__
    return name in _PEER_ERRORS or (
        name in ("JaxRuntimeError", "XlaRuntimeError", "ValueError", "RuntimeError")
        and "jax" in sys.modules
        and _PEER_TEXTS.search(str(error)) is not None
    )


def _pickle(result: object) -> bytes:
    try:
        data = bytes(cloudpickle.dumps(result))
    except Exception as error:
        raise TypeError(
            f"the program returned a {type(result).__name__}, which can't be sent to the driver: return numbers, "
            f"arrays, or anything else that pickles ({error_text(error)})"
        ) from error
    if len(data) > _RESULT_BYTES:
        raise ValueError(
            f"the program returned a {type(result).__name__} of {len(data)} bytes, more than the {_RESULT_BYTES} "
            "that the driver accepts: write it to a file system (ctx.export) and return its path"
        )
    return data


def _summary(error: BaseException) -> str:
    """Return an error's class and reason."""
    text = error_text(error, _FIRST)
    if wrapped := wrapped_error(text):
        return wrapped
    if text.startswith(_GRAPH_ERROR) and (called := _CALLED.search(text)):
        return f"{called[1]}, in a function that TensorFlow called, as a generator of tf.data"
    first = error_text(Exception(_main_line(text)))
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _raised_in(error: BaseException) -> str:
    """Return the module that raised an error."""
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None:
        frames = frames.tb_next
    return "" if frames is None else str(frames.tb_frame.f_globals.get("__name__", ""))


def _main_line(text: str) -> str:
    """Return the line of an error's text that has the reason: the first; of TensorFlow's error in a graph the last."""
    lines = [line for line in text.splitlines() if line.strip()]
    if lines[:1] == [_GRAPH_ERROR]:
        reasons = [line for line in lines[1:] if not line.lstrip().startswith(_NO_REASONS)]
        lines = reasons[-1:] or lines
    return lines[0].strip() if lines else ""


def _code(error: SystemExit) -> str:
    return repr(error.code) if isinstance(error.code, int) else repr(error_text(error))


def _advice(error: BaseException) -> str:
    text = error_text(error, sys.maxsize)
    if _CAST.search(text) and text_columns:
        names = ", ".join(map(repr, text_columns))
        return (
            f"of the columns that the program takes, {names} hold strings, of which no loss can be made: index a label "
            "in Spark (StringIndexer) or in dataset.map (StringLookup), and begin a model of strings with a layer for "
            "them"
        )
    if isinstance(error, TypeError) and (found := _UNEXPECTED.search(text)):
        for kind in (*Context.__mro__, Feed, CoordinatedFeed):
            if kind.__name__ == found[1]:
                known = list(inspect.signature(getattr(kind, found[2])).parameters)[1:]
                return f"{found[2]} takes {', '.join(known)}{did_you_mean(found[3], known)}"
    if isinstance(error, AssertionError) and _raised_in(error).startswith("pyspark."):
        return (
            f"{_raised_in(error)} works in the driver and in Spark's tasks, and a node is neither: give what it "
            "returns as args, and files with run_script(files=...), tfos run --files, or a path that all hosts reach"
        )
    if isinstance(error, BdbQuit) and error.args:
        return "c in place of q has the program go on"
    if _is_of_peer(error):  # reported only if no other node has failed
        return "all nodes are up: the network between the workers may drop packets, or a worker left its loop early"
    return next((advice for kind, advice in _ADVICE.items() if isinstance(error, kind)), "").format(
        name=getattr(error, "name", ""), python=sys.executable
    )

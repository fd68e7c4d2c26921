"""Exceptions of the package.

Their texts contain the problem, its place, the value and the remedy. All of them survive pickling, so that one raised
in a node or a Spark task arrives complete in the driver.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "CheckpointError",
    "ClusterError",
    "FailureKind",
    "FeedError",
    "NodeError",
    "RequirementError",
    "SlotsError",
    "SpecError",
    "StartError",
    "StorageError",
    "TFRecordError",
]

_TEXT = 2000  # characters of another program's error: that of a JVM has all its frames
_SHOWN_LINES = 30  # of a node's output: a crash of native code prints its stack last, and its reason before


def error_text(error: BaseException, limit: int = _TEXT) -> str:
    """Return the text of any exception: that of a program's own may raise, or have megabytes.

    Examples
    --------
    >>> error_text(ValueError("x" * 30), 10)
    'xxxxxxxxxx... (30 characters)'
    """
    try:
        text = str(error)
    except BaseException as problem:
        return f"(without a text: its __str__ raised {type(problem).__name__})"
    text = text.encode(errors="backslashreplace").decode()  # lone surrogates can't be sent
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text):,} characters)"


# Settings of Horovod, Ray Train and TorchDistributor, each with one of ours that has its place, or with what does: the
# first that the function or command has which got it.
OF_PEERS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("num_proc", "num_processes", "np", "nproc_per_node"), ("num_workers", "workers")),
    "use_gpu": ("nodes=tfos.Nodes(gpus_per_node=1)", "gpus_per_node"),
    "resources_per_worker": ("Spark's spark.task.cpus, and nodes=tfos.Nodes(gpus_per_node=1)",),
    "scaling_config": ("num_workers=4, and nodes=tfos.Nodes(gpus_per_node=1)",),
    **dict.fromkeys(("max_failures", "failure_config"), ("restarts",)),
    **dict.fromkeys(
        ("checkpoint", "checkpoint_config", "run_config", "storage_path", "store"),
        ("ctx.checkpoint(path) in the program", "checkpoint_dir"),
    ),
    **dict.fromkeys(
        ("hosts", "hostfile", "nnodes", "master_addr", "rdzv_endpoint"),
        ("a number of workers: Spark chooses the hosts, on which it has executors",),
    ),
    "local_mode": ("a session of local[N]",),
    "train_loop_config": ("args",),
    "datasets": ("data",),
}


def did_you_mean(
    name: str, known: Iterable[str], elsewhere: Mapping[str, tuple[str, ...]] = MappingProxyType({})
) -> str:
    """Return what was probably meant, as an error adds it: by a table, else the known name that is most alike.

    The table `elsewhere` has names that others have for something here, as `OF_PEERS` where the settings of a cluster
    are given.

    Examples
    --------
    >>> f"no column 'labl'{did_you_mean('labl', ['features', 'label'])}"
    "no column 'labl' (did you mean 'label'?)"
    >>> did_you_mean("max_failures", ["num_workers", "restarts"], OF_PEERS)
    " (here it is 'restarts')"
    >>> did_you_mean("--epochs", ["--ps"])
    ''
    """
    there = list(known)
    own = {_plain(each): each for each in there}
    place = elsewhere.get(_plain(name), ())
    named = next((own[each] for each in place if each in own), None)
    if named or place:
        return f" (here it is {named!r})" if named else f" (here it is {place[0]})"
    bare = {each.lstrip("-"): each for each in reversed(there)}  # dashes make short options alike
    near = difflib.get_close_matches(name.lstrip("-"), bare, 1)
    return f" (did you mean {bare[near[0]]!r}?)" if near else ""


def _plain(name: str) -> str:
    """Return an option, or a keyword in camel case, as a keyword.

    Examples
    --------
    >>> _plain("--gpus-per-node"), _plain("numWorkers")
    ('gpus_per_node', 'num_workers')
    """
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().strip("-").replace("-", "_")


class ClusterError(Exception):
    """Base of this package's exceptions."""


class RequirementError(ClusterError):
    """A requirement is not installed, not set, or has changed: Java, a Python version, pyspark, TensorFlow, Keras."""


class SpecError(ClusterError, ValueError):
    """An invalid argument was refused, before anything was started.

    Parameters
    ----------
    text : str
        The message.
    setting : tuple of str, optional
        The name of the setting that has the value, if it is one of a cluster, and ``name=value`` as the message has it.
    """

    def __init__(self, text: str = "", *, setting: tuple[str, str] | None = None) -> None:
        super().__init__(text)
        self.setting = setting

    @classmethod
    def of(cls, name: str, value: object, rest: str) -> "Self":
        """Return the error of a setting's value, so that a command can name its option instead.

        Parameters
        ----------
        name : str
            The name of the setting.
        value : object
            Its value.
        rest : str
            The message after these.

        Examples
        --------
        >>> print(SpecError.of("num_workers", -1, ": expected 0 or more nodes"))
        num_workers=-1: expected 0 or more nodes
        """
        shown = f"{name}={value!r}"
        return cls(shown + rest, setting=(name, shown))


class SlotsError(ClusterError):
    """The Spark application has fewer task slots than the cluster has nodes.

    Parameters
    ----------
    needed, available : int
        Task slots that the nodes need, and those that the application has.
    advice : str
        The remedy.
    """

    def __init__(self, needed: int, available: int, advice: str) -> None:
        super().__init__(needed, available, advice)
        self.needed = needed
        self.available = available
        self.advice = advice

    def __str__(self) -> str:
        return (
            f"the cluster needs {self.needed} task slots at the same time, and the Spark application has "
            f"{self.available}: {self.advice}"
        )


class StartError(ClusterError):
    """Not all nodes came up; the message names the missing ones.

    Parameters
    ----------
    text : str
        The message.
    executor_lost : bool
        Whether the reason is that Spark has lost an executor meanwhile.
    """

    def __init__(self, text: str, *, executor_lost: bool = False) -> None:
        super().__init__(text)
        self.executor_lost = executor_lost


class FeedError(ClusterError):
    """A DataFrame could not be fed as requested; the message names column, partition and value.

    Parameters
    ----------
    text : str
        The message.
    skippable : bool
        Whether single rows are the reason, as those with a null: without them, the other rows could be fed.
    """

    def __init__(self, text: str, *, skippable: bool = False) -> None:
        super().__init__(text)
        self.skippable = skippable


class TFRecordError(ClusterError):
    """A TFRecord file can't be read, or its contents differ from the declared schema.

    Parameters
    ----------
    file : str
        Its path.
    offset : int
        The position in the file, in bytes; in a compressed file, in the decompressed contents.
    reason : str
        The problem.
    advice : str
        The remedy.
    """

    def __init__(self, file: str, offset: int, reason: str, advice: str = "") -> None:
        super().__init__(file, offset, reason, advice)
        self.file = file
        self.offset = offset
        self.reason = reason
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.file}, byte {self.offset}: {self.reason}" + (
            f"\nWhat to do: {self.advice}" if self.advice else ""
        )


class CheckpointError(ClusterError):
    """A checkpoint could not be written or read, or does not match the program's state; the message names its path."""


class StorageError(ClusterError, OSError):
    """The file system of a path can't be reached: a package, a setting or the host name is missing."""


class FailureKind(Enum):
    """The kind of a node's failure, ordered from the most likely root cause to the most likely consequence."""

    OUT_OF_MEMORY = 0
    KILLED = 1  # by a signal
    EXITED = 2  # the process ended without a report
    EXECUTOR_LOST = 3
    LOST = 4  # the connection to its supervisor broke
    STOPPED = 5  # its process exists and is stopped
    HUNG = 6  # its process exists and makes no progress
    PREEMPTED = 7  # its host goes, and all workers have saved
    GROWN = 8  # there are slots for more workers, and all have saved
    RAISED = 9  # the user's program raised
    PEER_LOST = 10  # the user's program raised because another node had ended


def is_planned(cause: str) -> bool:
    """Return whether a node was ended for a restart, for which all workers had saved: the cause is that of an error."""
    return cause in (FailureKind.PREEMPTED.name.lower(), FailureKind.GROWN.name.lower())


class NodeError(ClusterError):
    """A node of the cluster failed: its program raised, its process ended, or its host or executor was lost.

    Parameters
    ----------
    node : str
        The node's name, as in ``worker:0``.
    host : str
        The host it ran on.
    reason : str
        The failure, in one sentence.
    advice : str
        The remedy; empty if the traceback has all there is to know.
    traceback : str
        The traceback of the user's program, if it raised.
    output : str
        The last lines that the node printed, at most 100, unless its program raised an exception other than
        `SystemExit`. The message has the last 30.
    cause : str
        The kind of the failure, one of the `causes` of `RestartPolicy`.
    exit_code : int
        The exit code of the node's program as a shell knows it: 128 and the signal's number after a signal; 1 if there
        is none.

    Examples
    --------
    >>> print(NodeError("worker:1", "h7", "its process was killed by SIGKILL", "look at the host's logs"))
    worker:1 on h7 failed: its process was killed by SIGKILL
    What to do: look at the host's logs
    """

    def __init__(
        self,
        node: str,
        host: str,
        reason: str,
        advice: str = "",
        traceback: str = "",
        output: str = "",
        cause: str = "",
        exit_code: int = 1,
    ) -> None:
        super().__init__(node, host, reason, advice, traceback, output, cause, exit_code)
        self.node = node
        self.host = host
        self.reason = reason
        self.advice = advice
        self.traceback = traceback
        self.output = output
        self.cause = cause
        self.exit_code = exit_code

    def __str__(self) -> str:
        happened = "was ended" if is_planned(self.cause) else "failed"
        lines = [f"{self.node} on {self.host} {happened}: {self.reason}"]
        if self.advice:
            lines.append(f"What to do: {self.advice}")
        if self.traceback:
            lines.append(f"\nTraceback of {self.node}:\n{self.traceback.rstrip()}")
        if self.output:
            printed = self.output.rstrip().splitlines()
            shown = printed[-_SHOWN_LINES:]
            more = f" ({len(shown)} lines; the attribute output has {len(printed)})" if printed != shown else ""
            lines.append(f"\nThe last output of {self.node}{more}:\n" + "\n".join(shown))
        return "\n".join(lines)

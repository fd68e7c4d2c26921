"""Every exception of the package: what went wrong, where, with which value, and what to do about it.

All of them survive pickling, so that one raised in a node or a Spark task arrives whole in the driver.
"""

from enum import Enum

__all__ = [
    "CheckpointError",
    "ClusterError",
    "EnvironmentNotReady",
    "FailureKind",
    "FeedError",
    "NodeError",
    "SlotsError",
    "SpecError",
    "StartError",
    "StorageError",
    "TFRecordError",
]

_TEXT = 2000  # characters of another program's error: more is no sentence


def error_text(error: BaseException, limit: int = _TEXT) -> str:
    """Return the text of any exception: a program's own may raise when it is asked for its text, or have megabytes.

    Examples
    --------
    >>> error_text(ValueError("x" * 30), 10)
    'xxxxxxxxxx... (30 characters)'
    """
    try:
        text = str(error)
    except BaseException as problem:
        return f"(without a text: its __str__ raised {type(problem).__name__})"
    text = text.encode(errors="backslashreplace").decode()  # half characters can't be sent
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text):,} characters)"


class ClusterError(Exception):
    """The root of this package's exceptions; one ``except`` catches them all."""


class EnvironmentNotReady(ClusterError):
    """Something that must be installed or set is not: Java, a Python version, pyspark, TensorFlow."""


class SpecError(ClusterError, ValueError):
    """An argument that can't be right was refused, before anything was started."""


class SlotsError(ClusterError):
    """The Spark application has fewer task slots than the cluster has nodes.

    Parameters
    ----------
    needed, available : int
        Task slots that the nodes need, and that the application has now.
    advice : str
        What the user can change.
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
    """The nodes did not all come up; the message names those that are missing."""


class FeedError(ClusterError):
    """A DataFrame could not be fed as the program asked for it; the message names column, partition and value."""


class TFRecordError(ClusterError):
    """A TFRecord file can't be read, or holds something else than its reader was told.

    Parameters
    ----------
    file : str
        Its path.
    offset : int
        The place in the file, in bytes; in a compressed one in its decompressed contents.
    reason : str
        What is wrong there.
    advice : str
        What the user can do.
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
    """A checkpoint could not be written or read, or does not fit the program's state; the message names its path."""


class StorageError(ClusterError, OSError):
    """A path's file system can't be reached: something is not installed, not set, or not known."""


class FailureKind(Enum):
    """How a node failed; the order is that of how likely it is the cause, not a consequence, of the others."""

    OUT_OF_MEMORY = 0
    KILLED = 1  # by a signal
    EXITED = 2  # the process ended without a word
    EXECUTOR_LOST = 3
    LOST = 4  # the connection to its supervisor broke
    STOPPED = 5  # its process is there, and stopped
    HUNG = 6  # its process is there, and does nothing
    RAISED = 7  # the user's program raised
    PEER_LOST = 8  # the user's program raised since another node was gone


class NodeError(ClusterError):
    """A node of the cluster failed: its program raised, its process ended, or its host or executor is gone.

    Parameters
    ----------
    node : str
        The node's name, as in ``worker:0``.
    host : str
        The host it ran on.
    reason : str
        What happened, in one sentence.
    advice : str
        What the user can do; empty where there is nothing but the traceback.
    traceback : str
        The traceback of the user's program, where it raised.
    output : str
        The last lines that the node printed, where they add something.
    cause : str
        What it was, in one word of those that `RestartPolicy` knows.

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
    ) -> None:
        super().__init__(node, host, reason, advice, traceback, output, cause)
        self.node = node
        self.host = host
        self.reason = reason
        self.advice = advice
        self.traceback = traceback
        self.output = output
        self.cause = cause

    def __str__(self) -> str:
        lines = [f"{self.node} on {self.host} failed: {self.reason}"]
        if self.advice:
            lines.append(f"What to do: {self.advice}")
        if self.traceback:
            lines.append(f"\nTraceback of {self.node}:\n{self.traceback.rstrip()}")
        elif self.output:
            lines.append(f"\nThe last output of {self.node}:\n{self.output.rstrip()}")
        return "\n".join(lines)

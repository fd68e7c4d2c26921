"""Programs of 2.x: their function, arguments and process environment. Nodes import this module, so Spark is lazy."""

import os
import sys
from argparse import Namespace as Arguments
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tensorflowonspark.config import Job
from tensorflowonspark.errors import SpecError
from tensorflowonspark.node.forks import children_end_here

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


class InputMode:
    """The reader of a cluster's data."""

    TENSORFLOW = 0  # the programs
    SPARK = 1  # Spark, which feeds the programs


class Namespace(Arguments):
    """Arguments by name; or, made of a list, the command line ``argv``.

    Parameters
    ----------
    d : mapping, list, argparse.Namespace or Namespace
        The arguments; they are copied.

    Raises
    ------
    SpecError
        If it is anything else.

    Examples
    --------
    >>> args = Namespace({"epochs": 3, "lr": 0.1})
    >>> args, list(args), "lr" in args, args == Namespace(args)
    (Namespace(epochs=3, lr=0.1), ['epochs', 'lr'], True, True)
    >>> Namespace(["--epochs", "3"]).argv
    ['--epochs', '3']
    """

    argv: list[Any] | None = None

    def __init__(self, d: Any) -> None:
        super().__init__()
        if isinstance(d, (list, tuple)):
            self.argv = list(d)
        elif isinstance(d, (Mapping, Arguments)):
            vars(self).update(d if isinstance(d, Mapping) else vars(d))
        else:
            raise SpecError(f"{d!r}: arguments are a dict, a list, or what argparse returns; {{}} are none")

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the names, or over the elements of the command line."""
        return iter(vars(self) if self.argv is None else self.argv)

    def __repr__(self) -> str:
        return super().__repr__() if self.argv is None else repr(self.argv)


@dataclass(frozen=True)
class Program:
    """A function of ``(args, ctx)`` and the properties of its nodes."""

    function: Callable[[Any, Any], Any]
    args: Any
    is_fed: bool = False
    master: str = Job.CHIEF.value  # the program's name for the chief
    queues: tuple[str, ...] = field(default=())
    keeps_port: bool = False
    # Relative paths begin here on all nodes: 2.x took the driver's directory, on a shared file system.
    working_dir: str = field(default_factory=os.getcwd)

    def job_name(self, job: str) -> str:
        """Return a job's name as the program knows it."""
        return self.master if job == Job.CHIEF.value else job

    def call(self, ctx: Any) -> None:
        """Call the function on a node, with its command line and its share of the node's GPUs."""
        if isinstance(self.args, list):
            sys.argv = self.args  # for programs that parse it again on each node
        _limit_gpus(_num_gpus(self.args))
        try:
            with children_end_here():
                self.function(self.args, ctx)
        except SystemExit as end:
            if end.code not in (None, 0):
                raise


def _num_gpus(args: Any) -> Any:
    return args.get("num_gpus") if isinstance(args, dict) else getattr(args, "num_gpus", None)


def _limit_gpus(count: Any) -> None:
    """Restrict this process to the first GPUs of its node, as ``args.num_gpus`` asks."""
    if isinstance(count, int) and not isinstance(count, bool):
        own = [each for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(own[:count])


def session_of(sc: "SparkContext") -> "SparkSession":
    """Return the session of an application that has only a context."""
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() or SparkSession(sc)

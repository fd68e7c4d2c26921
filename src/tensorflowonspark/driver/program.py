"""The user's function, its arguments and its results: checked, and pickled both ways."""

import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle

from tensorflowonspark.driver.nodes import Node
from tensorflowonspark.errors import ClusterError, SpecError

__all__ = ["Function", "pickled_program", "positive", "range_of", "result_of"]

Function = Callable[[Any, Any], Any]


def result_of(node: Node) -> Any:
    """Return what the program returned on a node."""
    try:
        return pickle.loads(node.result)
    except Exception as error:
        raise ClusterError(
            f"what the program returned on {node.role} can't be read in the driver ({type(error).__name__}: {error}): "
            "return numbers or numpy arrays, or install here what it needs"
        ) from error


def range_of(workers: int | tuple[int, int]) -> tuple[int, int]:
    """Return the least and the most workers that are asked for."""
    if not isinstance(workers, (tuple, list)):
        return workers, workers
    if len(workers) != 2 or not all(isinstance(each, int) for each in workers) or not 1 <= workers[0] <= workers[1]:  # noqa: PLR2004
        raise SpecError(f"num_workers={workers!r}: expected a number, or the least and the most, as in (2, 8)")
    return workers[0], workers[1]


def positive(name: str, seconds: float) -> float:
    """Return seconds, if they are above 0."""
    if not isinstance(seconds, (int, float)) or not seconds > 0:
        raise SpecError(f"{name}={seconds!r}: expected seconds above 0")
    return float(seconds)


def pickled_program(function: Function, args: Any) -> bytes:
    """Return the program as it is shipped to the nodes."""
    if not callable(function):
        raise SpecError(f"function={function!r}: expected a function of (args, ctx)")
    try:
        return bytes(cloudpickle.dumps((function, args)))
    except Exception as error:
        raise SpecError(
            f"the function or its args can't be shipped to the nodes: {error}. Open connections, sessions and models "
            "belong inside the function"
        ) from error

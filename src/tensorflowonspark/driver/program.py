"""The user's program: its function or script and arguments, checked and serialized, its environment and results."""

import inspect
import io
import os
import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import cloudpickle

from tensorflowonspark.config import ClusterConfig, ClusterSpec
from tensorflowonspark.driver.console import parse_level, parse_show
from tensorflowonspark.driver.nodes import Node
from tensorflowonspark.driver.script import read_script
from tensorflowonspark.errors import ClusterError, SpecError
from tensorflowonspark.node.script import Script, run_script
from tensorflowonspark.restart_policy import RestartPolicy
from tensorflowonspark.settings import GROUPS, ClusterSettings, as_group

Function = Callable[..., Any]
Program = Function | str | os.PathLike[str] | Script

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_PARAMETERS = 2  # args and ctx
_PASSED_ON = ("NCCL_", "GRPC_")  # variables that configure communication, and differ between networks, not hosts
_INTERFACES = "NCCL_SOCKET_IFNAME"


def deserialize_result(node: Node) -> Any:
    """Return what the program returned on a node.

    A result that can't be deserialized here is a `ClusterError`.
    """
    try:
        return pickle.loads(node.program.result)
    except Exception as error:
        raise ClusterError(
            f"what the program returned on {node.role} can't be read in the driver ({type(error).__name__}: {error}): "
            "return numbers or numpy arrays, or install here what it needs"
        ) from error


def configure(program: bytes, settings: Mapping[str, Any]) -> ClusterConfig:
    """Return the configuration that the processes of a cluster receive, from the settings that a user gives.

    A setting that can't be right is refused (`SpecError`).

    Examples
    --------
    >>> from tensorflowonspark.settings import ClusterSettings, Logs
    >>> config = configure(b"", {**vars(ClusterSettings()), "num_workers": (2, 8), "logs": Logs(log_level="DEBUG")})
    >>> config.min_workers, config.log_level
    (2, 10)
    """
    workers, restarts = settings["num_workers"], settings["restarts"]
    least, most = _range(workers)
    spec = ClusterSpec(most, *(settings[name] for name in ("num_ps", "chief", "evaluator")))
    groups = [as_group(kind, settings[name], name) for name, kind in GROUPS.items()]
    grouped = {each.name: getattr(group, each.name) for group in groups for each in fields(group)}
    ClusterSettings(**settings)  # which checks the others
    in_form = {
        "env": node_variables(os.environ, settings["env"], grouped["network_interface"]),
        "log_level": parse_level(grouped["log_level"]),
        "min_workers": least if least != most else None,
        "restarts": restarts if isinstance(restarts, RestartPolicy) else RestartPolicy(restarts),
        "show": parse_show(grouped["show"], spec),
    }
    return ClusterConfig(spec, program, tensorboard=settings["tensorboard"], **{**grouped, **in_form})


def _range(workers: Any) -> tuple[int, int]:
    if not isinstance(workers, (tuple, list)):
        return workers, workers
    if len(workers) != 2 or not all(isinstance(each, int) for each in workers) or not 1 <= workers[0] <= workers[1]:  # noqa: PLR2004
        raise SpecError.of("num_workers", workers, ": expected a number, or the fewest and the most, as in (2, 8)")
    return workers[0], workers[1]


def node_variables(
    driver: Mapping[str, str], requested: Mapping[str, str] | None, network_interface: str | None
) -> dict[str, str]:
    """Return the environment variables for the nodes: the driver's for communication, and those of the user.

    The interface that the user has asked for counts in place of one that the driver's environment names.

    Examples
    --------
    >>> node_variables({"NCCL_DEBUG": "INFO", "HOME": "/home/ann", "NCCL_SOCKET_IFNAME": "eth0"}, {"A": "1"}, "ib0")
    {'NCCL_DEBUG': 'INFO', 'A': '1'}
    """
    passed = {name: value for name, value in driver.items() if name.startswith(_PASSED_ON)}
    if network_interface is not None:
        passed.pop(_INTERFACES, None)
    return {**passed, **{str(name): str(value) for name, value in (requested or {}).items()}}


def program_name(function: Program) -> str:
    """Return the name of a program for people: its function's, or its script's.

    Examples
    --------
    >>> program_name(program_name), program_name("jobs/train.py")
    ('program_name', 'train.py')
    """
    if isinstance(function, (str, os.PathLike)):
        return os.path.basename(function)  # noqa: PTH119 - a str too
    return function.name if isinstance(function, Script) else str(getattr(function, "__name__", "program"))


def serialize_program(function: Program, args: Any) -> bytes:
    """Return a pickled pair of a function of ``(args, ctx)`` and its first argument.

    `args` is the first argument, None unless the function takes it; or the command line of a script that is a path. A
    function with other parameters, a script that can't be run and a program that does not pickle are refused
    (`SpecError`).
    """
    if isinstance(function, (str, os.PathLike)):
        function, args = read_script(function, args), None
    if isinstance(function, Script):
        function, args = run_script, function
    if not callable(function):
        raise SpecError.of("function", function, ": expected a function of (args, ctx), or the path of a script")
    count = _count_parameters(function)
    if count < _PARAMETERS and args is not None:
        raise SpecError.of(
            "args", args, f": the function {_name(function)} does not take it: expected a function of (args, ctx)"
        )
    data = io.BytesIO()
    try:
        _ProgramPickler(data).dump((_of_two(function, count), args))
        return data.getvalue()
    except SpecError:
        raise
    except Exception as error:
        raise SpecError(
            f"the function or its args can't be shipped to the nodes: {error}. Open connections, sessions and models "
            "belong inside the function"
        ) from error


class _ProgramPickler(cloudpickle.Pickler):
    """Refuses what works in Spark's tasks alone: a node would find it empty, or lose what it adds."""

    def reducer_override(self, obj: Any) -> Any:
        pyspark = sys.modules.get("pyspark")
        if pyspark is not None and isinstance(obj, pyspark.Broadcast):
            raise SpecError(
                "the function or its args hold a broadcast variable, which Spark's tasks alone can read, and a node is "
                "none: give its value, as in args=variable.value"
            )
        if pyspark is not None and isinstance(obj, pyspark.Accumulator):
            raise SpecError(
                "the function or its args hold an accumulator, to which Spark's tasks alone can add, and a node is "
                "none: return the number from the function, or report it with ctx.report(name=number)"
            )
        return super().reducer_override(obj)


def _count_parameters(function: Function) -> int:
    """Return how many of ``args`` and ``ctx`` a function takes."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return _PARAMETERS  # a builtin's are not known
    positional = [each for each in parameters if each.kind in _POSITIONAL]
    required = [
        each.name
        for each in parameters
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    if required[_PARAMETERS:] or any(name not in [each.name for each in positional] for name in required):
        raise SpecError(
            f"the function {_name(function)} takes {', '.join(required)}: expected a function of (args, ctx), of (ctx) "
            "or of no parameter"
        )
    if any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return _PARAMETERS
    return min(len(positional), _PARAMETERS)


def _name(function: Function) -> str:
    return getattr(function, "__qualname__", None) or repr(function)


def _of_two(function: Function, count: int) -> Function:
    """Return a function of two parameters, which cloudpickle ships by value if it is not the user's own."""
    if count == _PARAMETERS:
        return function
    if count == 1:
        return lambda _args, ctx: function(ctx)
    return lambda _args, _ctx: function()

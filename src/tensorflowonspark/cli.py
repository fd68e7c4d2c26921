"""The command line: ``tfos`` and its subcommands."""

import argparse
import sys
from collections.abc import Sequence

import tensorflowonspark
from tensorflowonspark.driver.preflight import check_environment
from tensorflowonspark.errors import ClusterError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand of ``tfos`` and print its errors without a traceback.

    Parameters
    ----------
    arguments
        The command line after ``tfos``; by default that of the process.

    Returns
    -------
    int
        The exit code: 0, or 1 after an error of the package. A wrong command line ends the process with 2.
    """
    options = _parser().parse_args(arguments)
    try:
        exit_code: int = options.run(options)
    except ClusterError as error:
        print(error, file=sys.stderr)
        return 1
    return exit_code


def _parser() -> argparse.ArgumentParser:
    """Return the parser; each subcommand sets ``run``, a function of its options that returns the exit code."""
    parser = argparse.ArgumentParser(prog="tfos", description="TensorFlow clusters on Spark.")
    parser.add_argument("--version", action="version", version=f"tensorflowonspark {tensorflowonspark.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    check = commands.add_parser(
        "check",
        help="check that this machine can run a driver and nodes",
        description="Print the versions of Python, Java and the packages, or one line for each problem.",
    )
    check.set_defaults(run=_check)
    return parser


def _check(_: argparse.Namespace) -> int:
    for name, version in check_environment().items():
        print(f"{name:20}{version}")
    return 0

"""The command line: ``tfos`` and its subcommands."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import tensorflowonspark
from tensorflowonspark.cli import check
from tensorflowonspark.cli.signals import Signalled, exit_code_of_signal
from tensorflowonspark.driver.preflight import add_pyspark, not_importable
from tensorflowonspark.errors import (
    OF_PEERS,
    ClusterError,
    NodeError,
    RequirementError,
    SlotsError,
    SpecError,
    did_you_mean,
)

__all__ = ["exit_code_of", "main"]

_USAGE, _UNAVAILABLE = 2, 69  # exit codes; the second is EX_UNAVAILABLE of sysexits.h


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand of ``tfos`` and print its errors without a traceback.

    The exit code is 0; that of the node that failed first; 2 for an argument that can't be right; 69 for too few task
    slots; 128 and its number for a signal; 1 for any other error of the package. A wrong command line ends the process
    with 2.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    add_pyspark()
    try:
        options, unknown = _parser(words[:1]).parse_known_args(words)
        if unknown:
            options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
        exit_code: int = options.run(options)
    except ClusterError as error:
        print(error, file=sys.stderr)
        return exit_code_of(error)
    except (Signalled, KeyboardInterrupt) as ended:
        return exit_code_of_signal(ended)
    return exit_code


def exit_code_of(error: ClusterError) -> int:
    """Return the exit code of a command that an error has ended.

    Examples
    --------
    >>> exit_code_of(SpecError("no such script"))
    2
    """
    if isinstance(error, NodeError):
        return error.exit_code
    return {SpecError: _USAGE, SlotsError: _UNAVAILABLE}.get(type(error), 1)


class _Parser(argparse.ArgumentParser):
    """A parser that names the nearest known option, and leaves a script's command line alone."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the options before the script; all after it is its own."""
        if self.get_default("arguments") is None:
            return super().parse_known_args(args, namespace)
        own, script = self._split(list(args))
        found, unknown = super().parse_known_args(own, namespace)
        found.arguments = script
        return found, unknown

    def _split(self, words: list[str]) -> tuple[list[str], list[str]]:
        """Return the words up to the script, and those after it."""
        own: list[str] = []
        while words and words[0].startswith("-"):
            if words[0].startswith("-m") and words[0] != "-m":  # as in -mpackage
                words[:1] = ["-m", words[0][2:]]
            action = self._option_string_actions.get(words[0])
            if action is not None and action.nargs == "?":  # its value follows "=": the next word may be the script
                words[0] += f"={action.const}"
            count = 2 if action is not None and action.nargs is None else 1
            own, words = own + words[:count], words[count:]
        return own + words[:1], words[1:]

    def error(self, message: str) -> NoReturn:
        """End the process with the usage, the problem, and the option that was probably meant."""
        _, _, words = message.partition("unrecognized arguments: ")
        for word in words.split():
            if word.startswith("-"):
                message += did_you_mean(option := word.partition("=")[0], self._option_string_actions, OF_PEERS)
                if self.get_default("arguments") is not None:
                    message += f"; if {option} is the script's own, it stands after it: SCRIPT {option} ..."
        super().error(message)


def _parser(command: list[str]) -> argparse.ArgumentParser:
    """Return the parser; each subcommand sets itself, and ``run``, a function of its options that returns the code.

    ``tfos check`` works without the packages that the others import, of which it reports the missing ones.
    """
    parser = _Parser(prog="tfos", description="TensorFlow clusters on Spark.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"tensorflowonspark {tensorflowonspark.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    if command == ["check"]:
        check.add_to(commands)
        return parser
    try:
        from tensorflowonspark.cli import attach, doctor, run, show, stacks, submit
    except ModuleNotFoundError as error:
        raise RequirementError(not_importable(str(error.name))) from error
    for each in (run, submit, show, check, stacks, attach, doctor):
        each.add_to(commands)
    return parser

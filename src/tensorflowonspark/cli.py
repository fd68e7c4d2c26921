"""The command ``tfos``."""

import argparse
import sys
from collections.abc import Sequence

import tensorflowonspark
from tensorflowonspark.driver.preflight import check_environment
from tensorflowonspark.errors import EnvironmentNotReady

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="tfos", description="TensorFlow clusters on Spark.")
    parser.add_argument("--version", action="version", version=f"tensorflowonspark {tensorflowonspark.__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check", help="look whether this machine can run a driver and nodes")
    parser.parse_args(arguments)
    try:
        for name, version in check_environment().items():
            print(f"{name:12}{version}")
    except EnvironmentNotReady as error:
        print(error, file=sys.stderr)
        return 1
    return 0

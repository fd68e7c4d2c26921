"""``tfos submit``: a program with a Spark session of its own, as of Spark ML, with its Python environment."""

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from tensorflowonspark.cli.cluster_mode import ONCE, check_deploy_mode
from tensorflowonspark.cli.python_env import add_environment_options, find_environment
from tensorflowonspark.cli.run import add_deploy_mode, describe, note_late_options
from tensorflowonspark.cli.spark import add_spark_options, submit_arguments
from tensorflowonspark.cli.spark_settings import (
    program_of_spark,
    spark_settings,
    submit_environment,
    use_hadoop_settings,
)
from tensorflowonspark.errors import SpecError

_DRIVER_PYTHON = "spark.pyspark.driver.python"


def add_to(commands: Any) -> None:
    """Add the subcommand to those of a parser."""
    parser = commands.add_parser(
        "submit",
        help="run a program of Spark ML with its environment",
        usage="%(prog)s [options] SCRIPT [its arguments]",
        description="Run a Python file that makes its own SparkSession, as one that fits a KerasEstimator, by "
        "spark-submit: with the environment of this command packed for the executors of YARN and Kubernetes. Output, "
        "signals and exit code are those of spark-submit.",
        allow_abbrev=False,
    )
    parser.add_argument("script", metavar="SCRIPT", help="the program's file or URL; what follows is its own")
    add_deploy_mode(parser)
    parser.add_argument("--files", metavar="LIST", help="files for the working directory of each executor")
    add_environment_options(parser.add_argument_group("the executors' Python"))
    add_spark_options(parser)
    parser.set_defaults(run=_submit, parser=parser, arguments=[])


def _submit(options: argparse.Namespace) -> int:
    note_late_options(options)
    if "://" not in options.script and not Path(options.script).is_file():
        raise SpecError(f"{options.script}: there is no such file")
    check_deploy_mode(options)
    submit = ["--conf", ONCE] if options.deploy_mode == "cluster" else []  # what follows takes precedence
    submit += submit_arguments(options, Path(options.script).name, "*")
    use_hadoop_settings(submit)
    environment = find_environment(options, submit)
    submit += environment.arguments(submit) if environment else []
    submit += ["--deploy-mode", options.deploy_mode] + (["--files", options.files] if options.files else [])
    if environment and options.deploy_mode == "client" and _DRIVER_PYTHON not in spark_settings(submit):
        python = os.environ.get("PYSPARK_DRIVER_PYTHON", sys.executable)  # what is packed is beside the executors alone
        submit += ["--conf", f"{_DRIVER_PYTHON}={python}"]
    if not options.dry_run:
        if environment:
            environment.publish()
        command = [program_of_spark("spark-submit"), *submit, options.script, *options.arguments]
        _become(command, submit_environment(spark_settings(submit)["spark.master"]))
    describe(options, {"script": [options.script, *options.arguments]}, submit, environment)
    return 0


def _become(command: list[str], environment: Mapping[str, str]) -> NoReturn:
    """Run a program in place of this one, in this process: its output, signals and exit code are those of this one."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.execve(command[0], command, environment)  # noqa: S606 - there is no shell

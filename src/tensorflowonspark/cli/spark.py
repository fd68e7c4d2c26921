"""Spark for the subcommands: the options of spark-submit, and a session whose driver is this process."""

import argparse
import os
import re
import shlex
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import psutil

from tensorflowonspark.cli.applications import application_of
from tensorflowonspark.cli.jvm_output import JvmOutput
from tensorflowonspark.cli.signals import uninterrupted
from tensorflowonspark.cli.spark_settings import SHELL, given_in_environment, spark_settings
from tensorflowonspark.driver.preflight import check_environment
from tensorflowonspark.driver.spark.jobs import first_cause
from tensorflowonspark.driver.spark.resources import is_local
from tensorflowonspark.errors import ClusterError, SpecError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OPTIONS = {  # of spark-submit, that are passed on to it
    "--master": (
        "URL",
        "where Spark runs: local[4], spark://host:7077, yarn, k8s://host (by default as Spark is configured, else on "
        "this machine with a slot for each node)",
    ),
    "--name": ("NAME", "the application's name (by default that of the script)"),
    "--queue": ("NAME", "YARN's queue"),
    "--properties-file": ("FILE", "a file of Spark's settings"),
    "--py-files": ("LIST", "archives and modules for the executors' Python"),
    "--archives": ("LIST", "archives that are unpacked beside the executors"),
    "--jars": ("LIST", "jars for the driver and the executors"),
    "--packages": ("LIST", "Maven coordinates of jars"),
    "--repositories": ("LIST", "further repositories of --packages"),
    "--num-executors": ("N", "the number of executors"),
    "--executor-cores": ("N", "the cores of each executor"),
    "--executor-memory": ("SIZE", "the memory of each executor's JVM"),
    "--total-executor-cores": ("N", "the cores of all executors together, on a standalone cluster"),
    "--driver-memory": ("SIZE", "the memory of the driver's JVM"),
    "--driver-cores": ("N", "the driver's cores, in cluster mode"),
    "--principal": ("NAME", "the Kerberos principal"),
    "--keytab": ("FILE", "the file of its key"),
    "--proxy-user": ("NAME", "the user in whose place the application runs"),
}
_RESOURCES = ("spark://", "yarn", "k8s://")
# The masters to which spark-submit passes an option, where these are not all.
_ONLY_FOR = {
    "--num-executors": ("yarn", "k8s://"),
    "--executor-cores": _RESOURCES,
    "--executor-memory": _RESOURCES,
    "--total-executor-cores": ("spark://",),
    "--queue": ("yarn",),
}
_OF_EXECUTORS = ("spark.executor.instances", "spark.executor.cores", "spark.executor.memory", "spark.cores.max")
_LOG_LEVEL = "spark.log.level"
_QUIET = {"spark.ui.showConsoleProgress": "false", _LOG_LEVEL: "ERROR"}
_MASTER = re.compile(r"local(\[.*\])?$|local-cluster\[|spark://|yarn$|k8s://")
_END_SECONDS = 5.0  # for a JVM to remove its files
_STOP_SECONDS = 30.0  # for Spark to end an application, after which this process ends and its JVM too
_FORMATS = {".parquet": "parquet", ".orc": "orc", ".json": "json", ".csv": "csv", ".tfrecord": "tfrecord"}
_READ_OPTIONS = {"csv": {"header": "true", "inferSchema": "true"}}


def add_spark_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of spark-submit to a parser."""
    group = parser.add_argument_group("Spark, as for spark-submit")
    for name, (metavar, text) in _OPTIONS.items():
        group.add_argument(name, metavar=metavar, help=text)
    text = "a setting of Spark (repeatable)"
    group.add_argument("-c", "--conf", action="append", default=[], metavar="K=V", help=text)
    group.add_argument("--verbose", action="store_true", help="show what Spark is started with")


def names_spark(options: argparse.Namespace) -> bool:
    """Return whether a command line has an option of Spark."""
    return bool(options.conf) or any(value is not None for value in _given(options).values())


def _given(options: argparse.Namespace) -> dict[str, str | None]:
    """Return the options of spark-submit on a command line."""
    return {option: getattr(options, option.lstrip("-").replace("-", "_")) for option in _OPTIONS}


def ineffective(options: argparse.Namespace, master: str) -> list[str]:
    """Return the options of a command line about executors that have no effect with a master, with their values."""
    given = _given(options).items()
    found = [f"{name} {value}" for name, value in given if value and not master.startswith(_ONLY_FOR.get(name, ""))]
    if is_local(master):
        found += [f"--conf {each}" for each in options.conf if each.partition("=")[0] in _OF_EXECUTORS]
    return found


def submit_arguments(options: argparse.Namespace, name: str, slots: int | str) -> list[str]:
    """Return the arguments of spark-submit that make the session.

    The application has the name unless there is an option. The task slots are those on this machine, where neither an
    option nor a setting of Spark names a master; ``*`` for one of each processor. What Spark would refuse is refused
    here (`SpecError`): a master that it does not have, a file of settings that can't be read; and so is an environment
    that asks for Spark Connect.
    """
    if find_spec("pyspark") is None:
        check_environment()  # which raises
    given = _given(options)
    if given["--master"] is not None and not _MASTER.match(given["--master"]):
        raise SpecError(f"--master {given['--master']}: expected local[N], spark://HOST:PORT, yarn or k8s://URL")
    if os.environ.get("SPARK_REMOTE") and given["--master"] is None:
        raise SpecError(
            f"SPARK_REMOTE={os.environ['SPARK_REMOTE']}: this command starts a driver of its own, which Spark Connect "
            "does not have: name a --master, or use tensorflowonspark.run_script in a program"
        )
    given["--name"] = given["--name"] or name
    arguments = [word for option, value in given.items() if value is not None for word in (option, value)]
    arguments += ["--verbose"] if options.verbose else []
    settings = [f"{key}={value}" for key, value in _QUIET.items()] + options.conf
    submit = [*given_in_environment(), *arguments, *(word for setting in settings for word in ("--conf", setting))]
    return submit if "spark.master" in spark_settings(submit) else ["--master", f"local[{slots}]", *submit]


def start_session(submit: list[str]) -> "SparkSession":
    """Return the session of a new application, whose driver is this process.

    If this machine lacks what a driver needs, it raises `RequirementError`; if Spark does not start for another reason,
    `ClusterError`.
    """
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    application = application_of(submit)
    os.environ["PYSPARK_SUBMIT_ARGS"] = shlex.join([*submit, *application.settings, SHELL])
    os.environ.pop("SPARK_REMOTE", None)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    others = set(psutil.Process().children())
    shows_all = "--verbose" in submit or spark_settings(submit).get(_LOG_LEVEL) != _QUIET[_LOG_LEVEL]
    output = JvmOutput(keeps=not shows_all)
    try:
        with output:
            # In a session of its own the JVM gets no signal that is for this command's process group: it ends with us.
            gateway = launch_gateway(popen_kwargs={"start_new_session": True, "stderr": output.descriptor})
        context = SparkContext(gateway=gateway)
        context.pythonExec = context.getConf().get("spark.pyspark.python", context.pythonExec)
        session = SparkSession(context)
        output.started()
        return session
    except BaseException as error:
        cause = _explain(error)  # asks the JVM, which is ended next
        with uninterrupted():
            _end(set(psutil.Process().children()) - others)  # a JVM whose start is interrupted may stay
            if not isinstance(error, Exception):
                application.kill()  # which YARN keeps until it has a container for it, with no driver any more
                raise
        output.failed()
        check_environment()  # what is missing explains more than Spark's own error
        raise ClusterError(f"Spark did not start: {cause}") from None  # whose text only the JVM has


def _explain(error: BaseException) -> str:
    if not isinstance(error, Exception):
        return ""
    jvm_ended = "JAVA_GATEWAY_EXITED" in str(error)
    return "its JVM has ended; its own lines above have the reason" if jvm_ended else first_cause(error)


def stop_session(spark: "SparkSession") -> None:
    """Stop Spark from a new thread: on this one's connection to the JVM a reply may be due that a signal cut off."""
    thread = Thread(target=spark.stop, daemon=True)
    thread.start()
    thread.join(_STOP_SECONDS)


def _end(children: set[psutil.Process]) -> None:
    for child in children:
        with suppress(psutil.NoSuchProcess):
            child.terminate()
    for child in psutil.wait_procs(children, _END_SECONDS)[1]:
        with suppress(psutil.NoSuchProcess):
            child.kill()


def read_frame(spark: "SparkSession", source: str, given_format: str | None, option: str = "--data") -> "DataFrame":
    """Return the DataFrame of a table, or of files.

    The source is the name of a table; or a path, with a ``/`` or an ending that is known. Without a format it follows
    from the path's ending, else it is Parquet. CSV files have a header. What Spark can't read is refused (`SpecError`),
    with the option that names it.
    """
    from tensorflowonspark.tfrecords.dataframes import read_tfrecord

    found = given_format or _FORMATS.get(Path(source.rstrip("/")).suffix)
    try:
        if found is None and "/" not in source:
            return spark.table(source)
        if found == "tfrecord":
            return read_tfrecord(spark, source)
        return spark.read.format(found or "parquet").options(**_READ_OPTIONS.get(found or "", {})).load(source)
    except Exception as error:
        if not _is_sparks(error):
            raise
        raise SpecError(f"{option} {source}: {first_cause(error)}") from error


def _is_sparks(error: Any) -> bool:
    from pyspark.errors import PySparkException

    return isinstance(error, PySparkException) or type(error).__module__ == "py4j.protocol"

"""``tfos doctor``: a redacted report on an installation, for an issue."""

import argparse
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from tensorflowonspark.cli.check import CheckReport, check
from tensorflowonspark.cli.redaction import Redaction
from tensorflowonspark.cli.spark import add_spark_options
from tensorflowonspark.cli.spark_settings import given_in_environment, spark_settings
from tensorflowonspark.errors import ClusterError, SpecError
from tensorflowonspark.keras.wheels import wheels_of
from tensorflowonspark.task.gpus import all_gpus

_DISTRIBUTIONS = ["tensorflowonspark", "pyspark", "numpy", "pandas", "pyarrow", "cloudpickle",
                  "fsspec", "hdfs-native", "cryptography", "psutil", "tqdm", "wrapt"]  # fmt: skip
_VARIABLES = re.compile(
    "SPARK_|PYSPARK_|PYTHON|JAVA_|HADOOP_|YARN_|TF_|TFOS_|TENSORFLOW_|KERAS_|CUDA|NCCL_|XLA_|LD_LIBRARY|VIRTUAL_ENV|CONDA_|"
    "MASTER$|DATABRICKS_RUNTIME|KUBERNETES_SERVICE_HOST"
)
_HEAD = """# TensorFlowOnSpark report

Secrets, user names, hosts and home directories are redacted. Read it before you publish it.
"""
_GIBIBYTE = 1 << 30


def add_to(commands: Any) -> None:
    """Add the subcommand to those of a parser."""
    parser = commands.add_parser(
        "doctor",
        help="write a redacted report for an issue",
        description="Write versions, memory, Spark's settings and the output of tfos check as Markdown, without "
        "secrets, user names, hosts and home directories. With --master or another option of Spark, executors are "
        "examined too.",
        allow_abbrev=False,
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="the report's file (by default standard output)")
    add_spark_options(parser)
    parser.set_defaults(run=_doctor, parser=parser)


def _doctor(options: argparse.Namespace) -> int:
    if options.output and not Path(options.output).absolute().parent.is_dir():
        raise SpecError(f"--output {options.output}: there is no such directory")
    found, failure = CheckReport(), ""
    try:
        found = check(options)
    except ClusterError as error:
        failure = str(error)
    text = _report(found, failure)
    if not options.output:
        print(text, end="")
        return 0
    try:
        Path(options.output).write_text(text)
    except OSError as error:
        raise SpecError(f"--output {options.output}: {error.strerror}") from error
    print(f"{options.output} is written: read it before you publish it", file=sys.stderr)
    return 0


def _report(found: CheckReport, failure: str) -> str:
    redaction = Redaction(hosts=found.hosts)
    checked = "\n".join(
        [*found.lines, *(f"problem: {each}" for each in found.problems), *([failure] if failure else [])]
    )
    settings = found.settings or spark_settings(given_in_environment())
    variables = {name: value for name, value in os.environ.items() if _VARIABLES.match(name)}
    sections = {
        "Versions": _lines(dict(_versions())),
        "Machine": _lines(dict(_machine())),
        "Environment": _settings(variables, redaction),
        "Spark's settings": _settings(settings, redaction),
        "tfos check": redaction.text(checked),
    }
    blocks = (f"\n## {title}\n\n```text\n{text or 'none'}\n```\n" for title, text in sections.items())
    return _HEAD + "".join(blocks)


def _lines(values: Mapping[str, str]) -> str:
    return "\n".join(f"{name:20}{value}" for name, value in values.items())


def _settings(values: Mapping[str, str], redaction: Redaction) -> str:
    return "\n".join(f"{name}={redaction.setting(name, value)}" for name, value in sorted(values.items()))


def _versions() -> Iterator[tuple[str, str]]:
    yield "Python", f"{platform.python_version()} ({platform.python_implementation()})"
    for library in ("tensorflow", "keras", "tf_keras"):
        yield from wheels_of(library).items()
    for name in _DISTRIBUTIONS:
        with suppress(PackageNotFoundError):
            yield name, version(name)


def _machine() -> Iterator[tuple[str, str]]:
    release = platform.freedesktop_os_release() if Path("/etc/os-release").exists() else {}
    yield "system", release.get("PRETTY_NAME", platform.system())
    yield "kernel", f"{platform.release()} {platform.machine()}"
    yield "cores", str(psutil.cpu_count())
    memory = psutil.virtual_memory()
    yield "memory", f"{memory.total / _GIBIBYTE:.1f} GiB, {memory.available / _GIBIBYTE:.1f} GiB of it available"
    yield "GPUs", str(len(all_gpus()))
    yield "container", "yes" if Path("/.dockerenv").exists() or "KUBERNETES_SERVICE_HOST" in os.environ else "no"

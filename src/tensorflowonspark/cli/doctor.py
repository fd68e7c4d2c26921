"""``tfos doctor``: a redacted report on an installation, for an issue."""

import argparse
import getpass
import os
import platform
import re
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from tensorflowonspark.cli.check import CheckReport, check
from tensorflowonspark.cli.settings import given_in_environment, spark_settings
from tensorflowonspark.cli.spark import add_spark_options
from tensorflowonspark.driver.preflight import wheels_of
from tensorflowonspark.errors import ClusterError, SpecError
from tensorflowonspark.secrecy import shown_value, without_secrets
from tensorflowonspark.task.gpus import all_gpus

# Names of accounts and hosts that show nothing about anybody.
_COMMON = {"root", "spark", "hadoop", "hdfs", "yarn", "livy", "zeppelin", "ubuntu", "debian", "ec2-user", "jovyan",
           "user", "admin", "nobody", "localhost", "localhost.localdomain", "vm", "worker", "master", "driver",
           ""}  # fmt: skip
_IPV4 = r"(?<![\w.-])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\w)"
_IPV6 = r"(?<![\w:])(?:[0-9a-f]{1,4}:){3,7}:?[0-9a-f]{1,4}(?![\w:])"
_ADDRESS = re.compile(f"{_IPV4}|{_IPV6}")
_URL_HOST = re.compile(r"(://|@)(?!<|https?:)([A-Za-z0-9][\w.-]*)")
_EMAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_HOME = re.compile(r"(/home/|/Users/|/user/)(?!<)([^/\s:,;'\"()]+)")
_LOOPBACK = ("127.", "0.0.0.0", "::1")  # noqa: S104 - names, not bound


class Redaction:
    """Replaces in texts what must not be published; equal names get equal marks, as in ``<host-1>``.

    Parameters
    ----------
    hosts, users : iterable of str
        Names of hosts and users beside those of this machine.
    home : str, optional
        The home directory; by default that of this process.

    Examples
    --------
    >>> redaction = Redaction(hosts=["n1.example.org"], users=["jane"], home="/home/jane")
    >>> redaction.text("hdfs://n1.example.org:8020/data/jane from /home/jane/x and 10.0.0.7")
    'hdfs://<host-1>:8020/data/<user> from ~/x and <host-2>'
    """

    def __init__(self, hosts: Iterable[str] = (), users: Iterable[str] = (), home: str | None = None) -> None:
        self._marks: dict[str, str] = {}
        self._home = home if home is not None else str(Path.home())
        given = [*hosts, socket.getfqdn(), socket.gethostname()]
        names = {*given, *(each.partition(".")[0] for each in given if not _ADDRESS.fullmatch(each))}
        self._hosts = sorted(names - _COMMON, key=lambda name: (-len(name), name))
        self._users = {each for each in (*users, *_own_names()) if each.lower() not in _COMMON}

    def text(self, text: str) -> str:
        """Return a text without secrets, hosts, addresses, user names and home directories."""
        return self._without_names(without_secrets(text))

    def setting(self, name: str, value: str) -> str:
        """Return the value of a setting or variable, which may be a secret or hold one, as Java's options do."""
        return self._without_names(shown_value(name, value))

    def _without_names(self, text: str) -> str:
        if len(self._home) > 1:
            text = re.sub(rf"{re.escape(self._home)}(?![\w.-])", "~", text)
        text = _EMAIL.sub("<email>", text)
        text = _HOME.sub(r"\1<user>", text)
        for name in sorted(self._users, key=len, reverse=True):
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", "<user>", text)
        for name in self._hosts:
            text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", lambda match: self._host(match[0]), text)
        text = _ADDRESS.sub(lambda match: self._host(match[0]), text)
        return _URL_HOST.sub(lambda match: match[1] + self._host(match[2]), text)

    def _host(self, name: str) -> str:
        if name.startswith(_LOOPBACK) or name.lower() in _COMMON:
            return name
        return self._marks.setdefault(name, f"<host-{len(self._marks) + 1}>")


def _own_names() -> list[str]:
    found = [os.environ.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER", "HADOOP_USER_NAME", "SPARK_USER")]
    try:
        return [*found, getpass.getuser()]
    except (KeyError, OSError):  # a container's user without an entry in its table
        return found


_DISTRIBUTIONS = ["tensorflowonspark", "pyspark", "keras", "tf_keras", "numpy", "pandas", "pyarrow", "cloudpickle",
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
    yield from wheels_of("tensorflow").items()
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

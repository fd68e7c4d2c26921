"""Spark's settings before it runs: those of a command line, of the environment and of files."""

import os
import re
import shlex
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

from tensorflowonspark import storage
from tensorflowonspark.errors import SpecError
from tensorflowonspark.secrecy import without_secrets

SHELL = "pyspark-shell"  # the last of PYSPARK_SUBMIT_ARGS
_HADOOP = "spark.hadoop."  # settings of Hadoop among those of Spark
_SETTINGS = {"--master": "spark.master", "--archives": "spark.archives"}
_PROPERTY = re.compile(r"^[ \t]*(spark\.[^\s=:]+)[ \t]*[ \t=:][ \t]*(.*?)[ \t]*$", re.MULTILINE)


def given_in_environment() -> list[str]:
    """Return the arguments in PYSPARK_SUBMIT_ARGS; those of the command line come later, and so take precedence.

    An open quotation is refused (`SpecError`).
    """
    text = os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise SpecError(f"PYSPARK_SUBMIT_ARGS={without_secrets(text)!r}: {error}") from error
    return words[:-1] if words[-1:] == [SHELL] else words


def spark_settings(submit: Sequence[str]) -> dict[str, str]:
    """Return Spark's settings, as far as they are known before it starts.

    Values come from the environment, the file of settings and the arguments, the later ones taking precedence. A file
    that can't be read is refused (`SpecError`).

    Examples
    --------
    >>> found = spark_settings(["--master", "yarn", "--conf", "spark.a=b"])
    >>> found["spark.master"], found["spark.a"]
    ('yarn', 'b')
    """
    words = [part for word in submit for part in (word.split("=", 1) if word.startswith("--") else [word])]
    pairs = list(pairwise(words))
    given = dict(value.partition("=")[::2] for name, value in pairs if name in ("--conf", "-c"))
    given |= {_SETTINGS[name]: value for name, value in pairs if name in _SETTINGS}
    file = dict(pairs).get("--properties-file")
    master = os.environ.get("MASTER")
    return {**({"spark.master": master} if master else {}), **_of_file(file), **given}


def use_hadoop_settings(submit: Sequence[str]) -> None:
    """Reach file systems as Spark will, which is not started yet."""
    settings = spark_settings(submit).items()
    storage.use({name.removeprefix(_HADOOP): value for name, value in settings if name.startswith(_HADOOP)})


def _of_file(given: str | None) -> dict[str, str]:
    folder = os.environ.get("SPARK_CONF_DIR") or str(Path(spark_home(), "conf"))
    file = Path(given or Path(folder, "spark-defaults.conf"))
    try:
        return dict(_PROPERTY.findall(file.read_text(errors="replace")))
    except OSError as error:
        if given:
            raise SpecError(f"--properties-file {file}: {error.strerror}") from error
        return {}


def submit_environment(master: str) -> dict[str, str]:
    """Return the environment of a spark-submit: the driver runs with this Python, but for a pod, which has its own."""
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"}
    if not master.startswith("k8s://"):
        environment.setdefault("PYSPARK_PYTHON", sys.executable)
    return environment


def program_of_spark(name: str) -> str:
    """Return the path of one of Spark's programs, as spark-submit."""
    return str(Path(spark_home(), "bin", name))


def spark_home() -> str:
    """Return the directory of Spark, as its own scripts find it; empty if there is none."""
    if find_spec("pyspark") is None:
        return os.environ.get("SPARK_HOME", "")
    from pyspark.find_spark_home import _find_spark_home

    return str(_find_spark_home())

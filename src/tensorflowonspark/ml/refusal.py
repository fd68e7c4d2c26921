"""Refusal of what a file can have a stage do: run code, connect to addresses, remove files."""

import logging
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tensorflowonspark.errors import SpecError
from tensorflowonspark.storage.hadoop import active_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

_SETTING, _VARIABLE = "spark.tensorflowonspark.loadCode", "TFOS_LOAD_CODE"
_SQL_TASK = "spark.sql.execution.id"  # a local property of each task that SQL has started


def check_code(path: str, names: Sequence[str], spark: "SparkSession | None" = None) -> bool:
    """Refuse code in a file if this process may load none; return whether it may load none.

    `path` is the user's, and `names` are the code in it. The setting that counts is the session's; by default that of
    the task in which this runs, else of the active session. Raises SpecError, with the names and the setting.
    """
    where, refusal = _refusal(spark)
    if names and refusal:
        raise SpecError(
            f"{path} holds code ({', '.join(names)}), and{where} {refusal} forbids to load any: set it to true if you "
            "trust everyone who can write there"
        )
    if names:
        _log.info("%s holds code, which runs when it is used: %s", path, ", ".join(names))
    return bool(refusal)


def check_reach(path: str, names: Sequence[str], spark: "SparkSession | None" = None) -> None:
    """Refuse params in a file by which a stage connects to addresses or removes files, where code is refused too.

    `names` are the params that are set in it; path, session and error are as for `check_code`.
    """
    where, refusal = _refusal(spark)
    if names and refusal:
        raise SpecError(
            f"{path} sets {', '.join(names)}, by which fit connects and removes files, and{where} {refusal} trusts no "
            "file: set it to true if you trust everyone who can write there, or save the estimator without them and "
            "set them after loading"
        )


def _refusal(spark: "SparkSession | None") -> tuple[str, str]:
    """Return where this is, as errors say it, and the setting that refuses code; empty if none does."""
    variable = os.environ.get(_VARIABLE, "")
    setting = _setting(spark)
    if setting is None:  # of a task that does not receive it
        refusal = "" if variable.lower() == "true" else f"{_VARIABLE}={variable or '(not set)'}"
        where = " in a task that Spark's SQL has not started (rdd.map, foreachPartition), which does not receive "
        return f"{where}{_SETTING},", refusal
    given = {_SETTING: setting, _VARIABLE: variable}
    return "", next((f"{name}={value}" for name, value in given.items() if (value or "true").lower() != "true"), "")


def _setting(spark: "SparkSession | None") -> str | None:
    """Return the setting, empty if it is not set; None if this process can't know it."""
    from pyspark import TaskContext

    task = TaskContext.get()
    if task is None:
        session = spark or active_session()
        return str(session.conf.get(_SETTING, "true")) if session else ""
    # Spark's SQL sends the settings of its session that are set to its tasks; no other task has any.
    value = task.getLocalProperty(_SETTING)
    return value or (None if task.getLocalProperty(_SQL_TASK) is None else "")


def check_keras(version: str) -> None:
    """Refuse a version of Keras in which files are known to run code in spite of ``safe_mode``.

    Raises SpecError, with the versions to install.
    """
    numbers = tuple(map(int, re.findall(r"\d+", version)[:3]))
    if not ((3, 12, 4) <= numbers < (3, 13) or numbers >= (3, 15, 1)):  # docs/security.md
        raise SpecError(
            f"Keras {version} has known faults by which a .keras file runs code or reads others, and code is refused "
            'here: install "keras>=3.15.1", or for Python 3.10 "keras>=3.12.4,<3.13"'
        )

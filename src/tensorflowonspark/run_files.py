"""What a run keeps on an executor's disk over its restarts; Spark removes it with the application, if not before."""

import shutil
import tempfile
import uuid
from collections.abc import Collection
from pathlib import Path

_PREFIX = "tfos-run-"
_DRIVER = uuid.uuid4().hex[:12]  # this process, if it is a driver


def new_run() -> str:
    """Return the id of a new run of this driver."""
    return f"{_DRIVER}-{uuid.uuid4().hex[:12]}"


def run_directory(local_directory: str, run: str) -> Path:
    """Return the directory of a run, which need not exist, in an executor's directory for temporary files."""
    return Path(local_directory or tempfile.gettempdir(), _PREFIX + run)


def remove_ended(local_directory: str, run: str, others: Collection[str]) -> None:
    """Remove the directories of runs that have ended: of those of a run's driver all but this one and others."""
    if not run:
        return
    first, kept = f"{_PREFIX}{run.partition('-')[0]}-", {_PREFIX + each for each in (run, *others)}
    for each in run_directory(local_directory, run).parent.glob(f"{first}*"):
        if each.name not in kept:
            shutil.rmtree(each, ignore_errors=True)

"""Models on their way to Spark's Python workers: as files that Spark copies to each executor once."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorflowonspark.driver.backend import is_remote
from tensorflowonspark.ml.artefact import Artefact
from tensorflowonspark.ml.code import code_for
from tensorflowonspark.ml.loading import Shipped

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ship"]

_kept: list[str] = []  # a directory: executors fetch from there whenever they come to it
_shipped: set[tuple[str, str]] = set()


def ship(
    spark: "SparkSession",
    artefact: Artefact,
    layers: tuple[str, ...] = (),
    custom_objects: Mapping[str, Any] | None = None,
) -> Shipped:
    """Have Spark send a model to the executors; return what they need to load it."""
    name = f"model-{artefact.digest}"
    session = _identity(spark)
    if (session, name) not in _shipped:
        _send(spark, name, artefact.data)
        _shipped.add((session, name))
    return Shipped(name, replace(artefact, data=b"", layers={}), layers, code_for(custom_objects))


def _send(spark: "SparkSession", name: str, data: bytes) -> None:
    if not _kept:
        _kept.append(tempfile.mkdtemp(prefix="tfos-models-"))
        atexit.register(_remove, _kept[0], os.getpid())
    path = Path(_kept[0], name)
    if not path.exists():
        path.write_bytes(data)
    if is_remote(spark):
        spark.addArtifacts(str(path), file=True)
    else:
        spark.sparkContext.addFile(str(path))


def _remove(directory: str, owner: int) -> None:
    """Remove a directory at the end of the process that has made it, and not at that of a forked child."""
    if os.getpid() == owner:
        shutil.rmtree(directory, ignore_errors=True)


def _identity(spark: "SparkSession") -> str:
    return str(spark.session_id if is_remote(spark) else spark.sparkContext.applicationId)

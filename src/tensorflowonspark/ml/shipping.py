"""Models on their way to Spark's Python workers: as files that Spark copies to each executor once."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tensorflowonspark.ml.artefact import Artefact

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["received", "ship"]

_kept: list[tempfile.TemporaryDirectory[str]] = []  # executors fetch from here whenever they come to it
_shipped: set[tuple[str, str]] = set()


def ship(spark: "SparkSession", artefact: Artefact) -> str:
    """Have Spark send an artefact's data to the executors; return the file's name there."""
    name = f"model-{artefact.digest}"
    session = _identity(spark)
    if (session, name) in _shipped:
        return name
    if not _kept:
        _kept.append(tempfile.TemporaryDirectory(prefix="tfos-models-"))
    path = Path(_kept[0].name, name)
    if not path.exists():
        path.write_bytes(artefact.data)
    if _is_remote(spark):
        spark.addArtifacts(str(path), file=True)
    else:
        spark.sparkContext.addFile(str(path))
    _shipped.add((session, name))
    return name


def received(name: str) -> bytes:
    """Return the data, in a Spark worker."""
    from pyspark import SparkFiles

    return Path(SparkFiles.get(name)).read_bytes()


def _is_remote(spark: "SparkSession") -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _identity(spark: "SparkSession") -> str:
    return str(spark.session_id if _is_remote(spark) else spark.sparkContext.applicationId)

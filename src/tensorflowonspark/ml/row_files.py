"""Rows of an estimator in files: Spark writes them once, and the nodes read them anew in each epoch."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark.sql import functions as f

from tensorflowonspark import storage
from tensorflowonspark.columns import quoted
from tensorflowonspark.driver.spark.backend import is_remote
from tensorflowonspark.driver.spark.jobs import first_cause
from tensorflowonspark.driver.spark.naming import described
from tensorflowonspark.errors import FeedError, SpecError, StorageError
from tensorflowonspark.terminal import CONSOLE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RowFiles:
    """The directories of Parquet files with the rows to train on, and with those to validate on."""

    train: str
    validation: str | None = None


@contextmanager
def written_rows(directory: str, frame: "DataFrame", validation: "DataFrame | str | None" = None) -> Iterator[RowFiles]:
    """Write rows as Parquet files, which are removed at the end of the block. No row moves to another executor.

    All nodes reach the directory. The rows to validate on may be marked by a boolean column. Raises SpecError over
    Spark Connect, where this process may not reach the directory, and FeedError if Spark can't compute the rows, or
    write them there.
    """
    if is_remote(frame.sparkSession):
        raise SpecError(f"cacheDir={directory!r}: over Spark Connect the rows are kept on the nodes: leave it out")
    storage.use_session(frame.sparkSession)
    root = f"{storage.absolute_path(directory, str(Path.cwd())).rstrip('/')}/rows-{uuid4().hex}"
    frames = {"train": frame}
    if isinstance(validation, str):
        problem = f"the column {validation!r}, which marks the rows to validate on, is null"
        marked = f.coalesce(f.col(quoted(validation)), f.raise_error(f.lit(problem)).cast("boolean"))
        frames = {"train": frame.where(~marked), "validation": frame.where(marked)}
    elif validation is not None:
        frames["validation"] = validation
    try:
        try:
            with described(frame.sparkSession, "write the rows to train on"):
                for name, rows in frames.items():
                    rows.write.parquet(f"{root}/{name}")
        except Exception as error:
            raise FeedError(f"cacheDir={directory!r}: Spark could not write the rows: {first_cause(error)}") from error
        yield RowFiles(f"{root}/train", f"{root}/validation" if "validation" in frames else None)
    finally:
        try:
            storage.remove(root)
        except StorageError as error:
            CONSOLE.log(_log, logging.WARNING, "the rows in %s were not removed: %s", root, error)

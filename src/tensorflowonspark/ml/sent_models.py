"""Models on the executors: sent once to each by Spark, and removed there when no DataFrame needs them any more.

A DataFrame may be computed at any time, so that only Spark knows how long it needs a model. A broadcast variable has
the same lifetime as the plans that name it: when the JVM has collected these, Spark removes its copies. The copy in the
driver's directory is removed here, at the next model. Spark Connect has no broadcast variables: there a model is a file
of the session, until that ends.
"""

import os
import tempfile
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from tensorflowonspark.driver.spark.backend import is_remote
from tensorflowonspark.driver.spark.spark_names import SENT_MODELS, explained

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_KEPT = 4  # models that are sent once for several DataFrames, as those of a stream's micro-batches


@dataclass(frozen=True)
class SentModel:
    """The bytes of a model on the executors."""

    name: str  # the same for the same bytes
    broadcast: Any = None  # a `pyspark.Broadcast`; None for a file of a session of Spark Connect

    def file(self) -> Path | None:
        """Return the file that contains the bytes, in a task; None where Spark encrypts its files."""
        if self.broadcast is None:
            from pyspark import SparkFiles

            return Path(SparkFiles.get(self.name))
        path = getattr(self.broadcast, "_path", None)
        return Path(path) if path else None

    def read(self) -> bytes:
        """Return the bytes, in a task."""
        file = self.file()
        if self.broadcast is None and file is not None:
            return file.read_bytes()
        # `value` would keep the bytes in the worker's memory, beside the model that is made of them.
        data: bytes = self.broadcast.load_from_path(str(file)) if file else self.broadcast.value
        return data


class SentModels:
    """The models that this driver has sent lately."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._files: set[tuple[str, str]] = set()  # of sessions of Spark Connect
        self._application = ""
        self._kept: OrderedDict[str, Any] = OrderedDict()  # broadcast variables
        self._released: dict[str, Any] = {}  # the JVM's weak references to earlier ones, by the driver's files

    def send(self, spark: "SparkSession", name: str, data: bytes) -> SentModel:
        """Send a model, unless that was done just now."""
        with self._lock:
            if not is_remote(spark):
                return SentModel(name, self._broadcast(spark.sparkContext, name, data))
            key = str(spark.session_id), name
            if key not in self._files:
                with tempfile.TemporaryDirectory(prefix="tfos-") as directory:
                    path = Path(directory, name)
                    path.write_bytes(data)
                    spark.addArtifacts(str(path), file=True)
                self._files.add(key)
            return SentModel(name)

    def _broadcast(self, context: "SparkContext", name: str, data: bytes) -> Any:
        application = str(context.applicationId)
        if application != self._application:  # the former one has ended, and Spark has removed its files
            self._application = application
            self._kept.clear()
            self._released.clear()
        if name not in self._kept:
            with explained(SENT_MODELS):
                self._remove_files()
            self._kept[name] = context.broadcast(data)
        self._kept.move_to_end(name)
        while len(self._kept) > _KEPT:
            _, oldest = self._kept.popitem(last=False)
            with explained(SENT_MODELS):
                self._released[oldest._path] = context._jvm.java.lang.ref.WeakReference(oldest._jbroadcast)
        return self._kept[name]

    def _remove_files(self) -> None:
        """Remove the driver's files of models that the JVM has collected: no plan names them any more."""
        for path in [path for path, reference in self._released.items() if reference.get() is None]:
            del self._released[path]
            with suppress(FileNotFoundError):
                os.unlink(path)  # noqa: PTH108


SENT = SentModels()

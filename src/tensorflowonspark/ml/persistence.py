"""Saving and loading of stages: Spark ML's metadata, and beside it files that Keras reads without Spark.

A saved model is a directory with ``metadata`` (as all stages of Spark ML have it, with the history) and ``model``, in
which ``model.keras`` is what ``keras.models.load_model`` takes (or ``saved_model`` what ``tf.saved_model.load`` takes),
and ``code.pkl`` the user's own classes and functions in it, which ``metadata`` lists. A saved estimator has params that
JSON can't represent in ``objects/objects.pkl``.
"""

import json
import pickle
import tempfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import cloudpickle
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReader, MLWriter

from tensorflowonspark import storage
from tensorflowonspark.driver.spark.backend import is_remote
from tensorflowonspark.errors import SpecError
from tensorflowonspark.ml.code import check_code
from tensorflowonspark.ml.model_bundle import ModelBundle, read_saved, write_saved
from tensorflowonspark.ml.params import ModelParams, is_plain
from tensorflowonspark.ml.serialization import deserialize, serialize

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OBJECTS = "objects.pkl"
_METADATA = "metadata"
Stage = TypeVar("Stage", bound=ModelParams)


class StageWriter(MLWriter):
    """Writer of a stage.

    Parameters
    ----------
    stage : KerasEstimator or KerasModel
        The stage.
    bundle : ModelBundle, optional
        Its trained model.
    metadata : mapping, optional
        Further entries of its metadata, as JSON represents them.
    without : collection of str, optional
        Names of params that the bundle contains already.
    """

    def __init__(
        self,
        stage: ModelParams,
        bundle: ModelBundle | None = None,
        metadata: Mapping[str, Any] | None = None,
        without: Collection[str] = (),
    ) -> None:
        super().__init__()
        self._stage, self._bundle, self._metadata, self._without = stage, bundle, metadata or {}, without

    def saveImpl(self, path: str) -> None:  # noqa: N802 - Spark ML's name
        """Save the stage to a path.

        Raises
        ------
        SpecError
            If a param refers to this Spark session.
        """
        path = _hadoop_path(path, self)
        bundle, (extra, plain, objects) = self._bundle, self._contents()
        DefaultParamsWriter.saveMetadata(self._stage, path, _spark_of(self), extraMetadata=extra, paramMap=plain)
        if objects:
            storage.publish(f"{path}/objects", lambda local: _write_objects(local, objects))
        if bundle is not None:
            storage.publish(f"{path}/model", lambda local: write_saved(bundle, local))

    def save_locally(self, directory: str) -> None:
        """Save the stage to a new directory of this machine, without a Spark job; `load` reads it there, too."""
        extra, plain, objects = self._contents()
        text = DefaultParamsWriter._get_metadata_to_save(self._stage, _spark_of(self), extra, plain)
        Path(directory, _METADATA).mkdir(parents=True)
        Path(directory, _METADATA, "part-00000").write_text(f"{text}\n")
        Path(directory, _METADATA, "_SUCCESS").touch()
        if objects:
            _write_objects(f"{directory}/objects", objects)
        if self._bundle is not None:
            write_saved(self._bundle, f"{directory}/model")

    def _contents(self) -> tuple[dict[str, Any], dict[str, Any], bytes]:
        """Return the further entries of the metadata, the params that JSON represents, and the others, pickled."""
        bundle, params = self._bundle, self._stage._paramMap.items()
        extra = {**self._metadata, **({} if bundle is None else {"model": bundle.to_metadata()})}
        plain = {param.name: value for param, value in params if is_plain(value)}
        objects = {each.name: value for each, value in params if each.name not in {*plain, *self._without}}
        return extra, plain, _pickled(objects)

    def _handleOverwrite(self, path: str) -> None:  # noqa: N802 - Spark ML's name
        # Spark ML removes a directory through the JVM, and over Spark Connect not at all.
        if is_remote(self.sparkSession):
            storage.remove(_hadoop_path(path, self))
        else:
            super()._handleOverwrite(_hadoop_path(path, self))


class StageReader(MLReader[Stage]):
    """Reader of a stage.

    Parameters
    ----------
    make : callable
        Returns the stage without its params, from its trained model (None for an estimator) and its metadata.
    """

    def __init__(self, make: Callable[[ModelBundle | None, Mapping[str, Any]], Stage]) -> None:
        super().__init__()
        self._make = make

    def load(self, path: str) -> Stage:
        """Return the stage at a path.

        Raises
        ------
        SpecError
            If there is no model, or the stage contains code, which Spark's settings forbid to load.
        """
        path = _hadoop_path(path, self)
        metadata = DefaultParamsReader.loadMetadata(path, _spark_of(self))
        with tempfile.TemporaryDirectory(prefix="tfos-") as scratch:
            for part in ("model", "objects"):
                storage.fetch(f"{path}/{part}", f"{scratch}/{part}")
            return self._stage(scratch, metadata, path, self.sparkSession)

    def load_locally(self, directory: str) -> Stage:
        """Return the stage in a directory of this machine; this needs no Spark session.

        Raises
        ------
        SpecError
            If there is none, or it contains code, which this process may not load.
        """
        parts = sorted(Path(directory, _METADATA).glob("part-*"))
        if not parts:
            raise SpecError(f"{directory}: there is no stage of this package")
        return self._stage(directory, json.loads(parts[0].read_text()), directory)

    def _stage(
        self, directory: str, metadata: Mapping[str, Any], path: str, spark: "SparkSession | None" = None
    ) -> Stage:
        """Return the stage whose files lie in a directory, and are those of the user's path."""
        described = metadata.get("model")
        bundle = None if described is None else read_saved(f"{directory}/model", described, path, spark)
        stage = self._make(bundle, metadata)
        stage._resetUid(metadata["uid"])
        DefaultParamsReader.getAndSetParams(stage, metadata)
        has_objects = Path(directory, "objects").exists()
        options = stage.getOrDefault("clusterOptions") if stage.hasParam("clusterOptions") else {}
        # The environment of nodes names what Python imports and the linker loads.
        code = {f"objects/{_OBJECTS}": has_objects, "clusterOptions.env": "env" in options}
        check_code(path, [name for name, held in code.items() if held], spark)
        if has_objects:
            _set_objects(stage, f"{directory}/objects")
        return stage


def _spark_of(end: Any) -> Any:
    """Return Spark ML's own argument for a reader or writer: the context, or over Spark Connect the session."""
    session = end.sparkSession
    return session if is_remote(session) else session.sparkContext


def _hadoop_path(path: str, end: Any) -> str:
    """Return a path as Hadoop resolves it, so that our files lie beside those of Spark ML."""
    storage.use_session(end.sparkSession)
    return storage.absolute_path(path, str(Path.cwd()))


def _pickled(params: Mapping[str, Any]) -> bytes:
    """Return params that JSON can't represent as a pickle of their serialized values; nothing if there are none."""
    for name in ("validationData", "initialModel"):
        if name in params:
            raise SpecError(
                f"an estimator with {name} can't be saved: pass it to fit, as in fit(df, {{est.{name}: ...}})"
            )
    return cloudpickle.dumps({name: serialize(value) for name, value in params.items()}) if params else b""


def _set_objects(stage: ModelParams, directory: str) -> None:
    for name, value in pickle.loads(Path(directory, _OBJECTS).read_bytes()).items():
        stage._set(**{name: deserialize(value, stage.getCustomObjects())})


def _write_objects(directory: str, objects: bytes) -> None:
    Path(directory).mkdir()
    Path(directory, _OBJECTS).write_bytes(objects)

"""Saving and loading the stages: Spark ML's metadata, and beside them files that Keras reads without Spark.

A saved model is a directory with ``metadata`` (as all stages of Spark ML have it, with the history) and ``model``, in
which ``model.keras`` is what ``keras.models.load_model`` takes (or ``saved_model`` what ``tf.saved_model.load`` takes),
and ``code.pkl`` the user's own classes and functions in it, which ``metadata`` lists. A saved estimator has what JSON
can't hold in ``objects/objects.pkl``.
"""

import logging
import pickle
import tempfile
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import cloudpickle
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReader, MLWriter

from tensorflowonspark import storage
from tensorflowonspark.driver.spark.backend import is_remote
from tensorflowonspark.errors import SpecError
from tensorflowonspark.ml.code import code_for
from tensorflowonspark.ml.model_bundle import read_saved, write_saved
from tensorflowonspark.ml.params import is_plain
from tensorflowonspark.ml.serialization import deserialize, serialize

if TYPE_CHECKING:
    from tensorflowonspark.ml.estimator import KerasEstimator
    from tensorflowonspark.ml.model import KerasModel

__all__ = ["EstimatorReader", "EstimatorWriter", "ModelReader", "ModelWriter"]

_log = logging.getLogger(__name__)
_OBJECTS = "objects.pkl"
_LOAD_CODE = "spark.tensorflowonspark.loadCode"
Stage = TypeVar("Stage", "KerasEstimator", "KerasModel")


def _spark_of(place: Any) -> Any:
    """Return what Spark ML's own readers and writers go by: the context, or over Spark Connect the session."""
    session = place.sparkSession
    return session if is_remote(session) else session.sparkContext


def _hadoop_path(path: str, place: Any) -> str:
    """Return a path as Hadoop understands it, which Spark ML's own files go by; ours are to lie beside them."""
    storage.use_session(place.sparkSession)
    return storage.absolute_path(path, str(Path.cwd()))


def _save_metadata(stage: Any, path: str, place: Any, extra: dict[str, Any]) -> None:
    plain = {param.name: value for param, value in stage._paramMap.items() if is_plain(value)}
    DefaultParamsWriter.saveMetadata(stage, path, _spark_of(place), extraMetadata=extra, paramMap=plain)


def _save_objects(stage: Any, path: str, without: Collection[str] = ()) -> None:
    objects = {
        param.name: serialize(value)
        for param, value in stage._paramMap.items()
        if not is_plain(value) and param.name not in without
    }
    for name in ("validationData", "initialModel"):
        if name in objects:
            raise SpecError(
                f"an estimator with {name} can't be saved: give it to fit, as in fit(df, {{est.{name}: ...}})"
            )
    if objects:

        def write(local: str) -> None:
            Path(local).mkdir()
            Path(local, _OBJECTS).write_bytes(cloudpickle.dumps(objects))

        storage.publish(f"{path}/objects", write)


def _loaded(stage: Stage, path: str, metadata: dict[str, Any], reader: Any) -> Stage:
    stage._resetUid(metadata["uid"])
    DefaultParamsReader.getAndSetParams(stage, metadata)
    with tempfile.TemporaryDirectory(prefix="tfos-") as scratch:
        if storage.fetch(f"{path}/objects", scratch):
            _check_code(path, reader, [f"objects/{_OBJECTS}"])
            for name, value in pickle.loads(Path(scratch, _OBJECTS).read_bytes()).items():
                stage._set(**{name: deserialize(value, stage.getOrDefault("customObjects"))})
    return stage


def _check_code(path: str, place: Any, held: list[str]) -> None:
    """Refuse code in what is loaded where Spark's settings say so.

    Raises
    ------
    SpecError
        It lists what the saved stage holds.
    """
    if held and str(place.sparkSession.conf.get(_LOAD_CODE, "true")).lower() == "false":
        raise SpecError(
            f"{path} holds code ({', '.join(held)}), and {_LOAD_CODE}=false forbids to load any: set it to true if you "
            "trust whoever could write there"
        )
    if held:
        _log.info("%s holds code of its own, which runs when it is used: %s", path, ", ".join(held))


class _Writer(MLWriter):
    """Saves a stage, over what is there if the user says so."""

    def _handleOverwrite(self, path: str) -> None:  # noqa: N802 - Spark ML's name
        """Remove what is there, which Spark ML does by the JVM, and over Spark Connect not at all."""
        if is_remote(self.sparkSession):
            storage.remove(_hadoop_path(path, self))
        else:
            super()._handleOverwrite(_hadoop_path(path, self))


class EstimatorWriter(_Writer):
    """Saves an estimator."""

    def __init__(self, stage: "KerasEstimator") -> None:
        super().__init__()
        self._stage = stage

    def saveImpl(self, path: str) -> None:  # noqa: N802 - Spark ML's name
        """Save it to a path."""
        path = _hadoop_path(path, self)
        _save_metadata(self._stage, path, self, {})
        _save_objects(self._stage, path)


class EstimatorReader(MLReader["KerasEstimator"]):
    """Loads an estimator."""

    def __init__(self, kind: "type[KerasEstimator]") -> None:
        super().__init__()
        self._kind = kind

    def load(self, path: str) -> "KerasEstimator":
        """Load it from a path."""
        path = _hadoop_path(path, self)
        metadata = DefaultParamsReader.loadMetadata(path, _spark_of(self))
        return _loaded(self._kind(), path, metadata, self)


class ModelWriter(_Writer):
    """Saves a model."""

    def __init__(self, stage: "KerasModel") -> None:
        super().__init__()
        self._stage = stage

    def saveImpl(self, path: str) -> None:  # noqa: N802 - Spark ML's name
        """Save it to a path."""
        path = _hadoop_path(path, self)
        stage = self._stage
        artefact = stage.artefact
        if given := stage.getOrDefault("customObjects"):
            artefact = replace(artefact, code=code_for({**artefact.code.load(), **given}))
        extra = {"artefact": artefact.described(), "history": stage.history, "layers": list(stage._layers)}
        _save_metadata(stage, path, self, extra)
        _save_objects(stage, path, without={"customObjects"})
        storage.publish(f"{path}/model", lambda local: write_saved(artefact, local))


class ModelReader(MLReader["KerasModel"]):
    """Loads a model."""

    def __init__(self, kind: "type[KerasModel]") -> None:
        super().__init__()
        self._kind = kind

    def load(self, path: str) -> "KerasModel":
        """Load it from a path."""
        path = _hadoop_path(path, self)
        metadata = DefaultParamsReader.loadMetadata(path, _spark_of(self))
        with tempfile.TemporaryDirectory(prefix="tfos-") as scratch:
            if not storage.fetch(f"{path}/model", f"{scratch}/model"):
                raise SpecError(f"{path}/model: there is no model")
            artefact = read_saved(f"{scratch}/model", metadata["artefact"])
        _check_code(path, self, artefact.carries)
        model = self._kind(artefact, history=metadata["history"])
        model._layers = tuple(metadata["layers"])
        return _loaded(model, path, metadata, self)

"""Saving and loading of stages: Spark ML's metadata, and beside it files that Keras reads without Spark.

A saved model is a directory with ``metadata`` (as all stages of Spark ML have it, with the history) and ``model``, in
which ``model.keras`` is what ``keras.models.load_model`` takes (or ``saved_model`` what ``tf.saved_model.load`` takes),
and ``code.pkl`` the user's own classes and functions in it, which ``metadata`` lists. A saved estimator has params that
JSON can't represent in ``objects/objects.pkl``. A model that an estimator has trained has the run's ``manifest.json``.
"""

import json
import logging
import pickle
import tempfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import cloudpickle
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReader, MLWriter

from tensorflowonspark import __version__, storage
from tensorflowonspark.errors import SpecError
from tensorflowonspark.ml.model_bundle import ModelBundle, read_saved, write_saved
from tensorflowonspark.ml.params import ModelParams, is_plain
from tensorflowonspark.ml.refusal import check_code, check_reach
from tensorflowonspark.ml.serialization import deserialize, serialize
from tensorflowonspark.run_manifest import FILE, Record, parse_manifest, write_manifest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
_OBJECTS = "objects.pkl"
_METADATA = "metadata"
_REACH = ("cacheDir", "checkpointDir", "clusterOptions")  # where an estimator connects, and what it removes
_VERSION = "tensorflowonspark"  # of this package, by which a stage was saved
_JSON: dict[type, str] = {str: "string", dict: "object", list: "array"}
_FORM: dict[str, type] = {"class": str, "uid": str, "sparkVersion": str, "paramMap": dict, "defaultParamMap": dict}
Stage = TypeVar("Stage", bound=ModelParams)


class StageWriter(MLWriter):
    """Writer of a stage, with its trained model if it has one.

    The metadata are further entries, as JSON represents them; `without` names params that the bundle contains already.
    The manifest is that of the run which has trained the model.
    """

    def __init__(
        self,
        stage: ModelParams,
        bundle: ModelBundle | None = None,
        metadata: Mapping[str, Any] | None = None,
        without: Collection[str] = (),
        manifest: Record | None = None,
    ) -> None:
        super().__init__()
        self._manifest = manifest
        self._stage, self._bundle, self._metadata, self._without = stage, bundle, metadata or {}, without

    def saveImpl(self, path: str) -> None:  # noqa: N802 - Spark ML's name
        """Save the stage to a path, at once as a whole.

        Raises SpecError if a param refers to this Spark session, or something is there that may not be overwritten.
        """
        path = _hadoop_path(path, self)
        files, within = storage.file_system(path)
        if not self.shouldOverwrite and files.exists(within) and files.ls(within, detail=False):
            raise SpecError(f"there is something at {path}: write().overwrite().save(path) replaces it")
        storage.publish(path, self.save_locally)

    def save_locally(self, directory: str) -> None:
        """Save the stage to a new directory of this machine."""
        bundle, params = self._bundle, self._stage._paramMap.items()
        extra = {**self._metadata, _VERSION: __version__}
        extra |= {} if bundle is None else {"model": bundle.to_metadata()}
        plain = {param.name: value for param, value in params if is_plain(value)}
        objects = _pickled({each.name: value for each, value in params if each.name not in {*plain, *self._without}})
        text = DefaultParamsWriter._get_metadata_to_save(self._stage, self.sparkSession, extra, plain)
        Path(directory, _METADATA).mkdir(parents=True)
        Path(directory, _METADATA, "part-00000").write_text(f"{text}\n")
        Path(directory, _METADATA, "_SUCCESS").touch()
        if objects:
            Path(directory, "objects").mkdir()
            Path(directory, "objects", _OBJECTS).write_bytes(objects)
        if bundle is not None:
            write_saved(bundle, f"{directory}/model")
        if self._manifest:
            write_manifest(self._manifest, f"{directory}/{FILE}")

    def _handleOverwrite(self, path: str) -> None:  # noqa: N802 - Spark ML's name
        """Leave it to `saveImpl`: Spark ML's own needs a JVM, and removes the old stage before it has the new one."""


class StageReader(MLReader[Stage]):
    """Reader of a stage.

    `make` returns the stage without its params, from its trained model (None for an estimator) and its metadata, and
    `form` has the types of the further entries of its metadata.
    """

    def __init__(
        self,
        kind: type[Stage],
        make: Callable[[ModelBundle | None, Mapping[str, Any]], Stage],
        form: Mapping[str, type] | None = None,
    ) -> None:
        super().__init__()
        self._kind, self._make, self._form = kind, make, {**_FORM, **(form or {})}

    def load(self, path: str) -> Stage:
        """Return the stage at a path.

        Raises SpecError if there is none or that of another class, it is damaged, it has a param that this version has
        not, or it contains code, which Spark's settings forbid to load, or a param by which `fit` connects or removes
        files.
        """
        path = _hadoop_path(path, self)
        files, within = storage.file_system(path)
        if not files.exists(within):
            raise SpecError(f"{path}: there is nothing there")
        with tempfile.TemporaryDirectory(prefix="tfos-") as scratch:
            for part in (_METADATA, "model", "objects", FILE):  # what else lies there may be large, and is no stage's
                storage.fetch(f"{path}/{part}", f"{scratch}/{part}")
            return self.load_locally(scratch, path, self.sparkSession)

    def load_locally(self, directory: str, path: str = "", spark: "SparkSession | None" = None) -> Stage:
        """Return the stage in a directory of this machine; without a session, this needs none.

        `path` is that of which it is a copy, for errors. The session is the one that may refuse code; by default that
        of the process. Raises SpecError as `load` does.
        """
        path = path or directory
        metadata = self._metadata(directory, path)
        bundle = read_saved(f"{directory}/model", metadata["model"], path, spark) if "model" in self._form else None
        stage = self._make(bundle, {**metadata, "manifest": _manifest_in(directory, path)})
        stage._resetUid(metadata["uid"])
        _require_params(stage, {**metadata["paramMap"], **metadata["defaultParamMap"]}, metadata, path)
        try:
            for name, value in metadata["paramMap"].items():
                stage._set(**{name: value})  # whose errors name the param, and those of Spark's reader don't
            DefaultParamsReader.getAndSetParams(stage, {**metadata, "paramMap": {}})
        except (SpecError, TypeError, ValueError) as error:
            raise SpecError(f"{path}: its params can't be set ({_saved_by(metadata)}): {error}") from error
        objects = Path(directory, "objects", _OBJECTS)
        # The environment of nodes names what Python imports and the linker loads.
        code = {f"objects/{_OBJECTS}": objects.exists(), "env": stage.hasParam("env") and bool(stage._optional("env"))}
        check_code(path, [name for name, held in code.items() if held], spark)
        check_reach(path, [name for name in _REACH if stage.hasParam(name) and stage._optional(name)], spark)
        if objects.exists():
            self._set_objects(stage, objects, metadata, path)
        return stage

    def _metadata(self, directory: str, path: str) -> dict[str, Any]:
        """Return the metadata of the stage in a directory, whose entries have their types."""
        parts = sorted(Path(directory, _METADATA).glob("part-*"))
        if not parts:
            raise SpecError(f"{path}: there is no stage of this package")
        try:
            metadata: Any = json.loads(parts[0].read_text())
        except ValueError as error:
            raise SpecError(f"{path}: its metadata is cut or damaged: {error}. Copy or save the stage again") from error
        wanted = f"{self._kind.__module__}.{self._kind.__name__}"
        found = metadata.get("class") if isinstance(metadata, dict) else None
        if isinstance(found, str) and found != wanted:
            reader = f"{found.rpartition('.')[2]}.load"
            raise SpecError(f"{path} holds a stage of {found}, and no {wanted}: {reader} reads it")
        held: dict[str, Any] = metadata if isinstance(metadata, dict) else {}
        for name, kind in self._form.items():
            if not isinstance(held.get(name), kind):
                raise SpecError(f"{path}: its metadata is damaged: it has no {name!r}, or of another type than JSON's "
                                f"{_JSON[kind]}. Copy or save the stage again")  # fmt: skip
        return held

    def _set_objects(self, stage: Stage, file: Path, metadata: Mapping[str, Any], path: str) -> None:
        """Set the params that are pickled."""
        try:
            values = pickle.loads(file.read_bytes())
            _require_params(stage, values, metadata, path)
            for name, value in values.items():
                stage._set(**{name: deserialize(value, stage.getCustomObjects())})
        except SpecError:
            raise
        except Exception as error:  # of a cut file, a module that is missing here, or the user's own code
            raise SpecError(
                f"{path}: the params in objects/{_OBJECTS} can't be loaded ({_saved_by(metadata)}): "
                f"{type(error).__name__}: {error}"
            ) from error


def _manifest_in(directory: str, path: str) -> Record:
    """Return the manifest in the directory of a stage; nothing if there is none, or it is damaged, after a warning."""
    try:
        return parse_manifest(Path(directory, FILE).read_bytes())
    except FileNotFoundError:  # it was not trained by an estimator, or an earlier version has saved it
        return {}
    except ValueError as error:
        _log.warning("%s: its %s can't be read, and is left out: %s", path, FILE, error)
        return {}


def _require_params(stage: ModelParams, names: Collection[str], metadata: Mapping[str, Any], path: str) -> None:
    """Refuse params that the stage has not, as those of a later version."""
    unknown = sorted(name for name in names if not stage.hasParam(name))
    if unknown:
        raise SpecError(
            f"{path}: {type(stage).__name__} has no param {', '.join(map(repr, unknown))}, which the saved stage has "
            f"({_saved_by(metadata)}): load it with that version"
        )


def _saved_by(metadata: Mapping[str, Any]) -> str:
    """Return by which version of this package a stage was saved, and which this is, for errors."""
    return f"tensorflowonspark {metadata.get(_VERSION, '(unknown)')} has saved it, and this is {__version__}"


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

"""Export of trained models: a format's file or directory, on any file system, once it computes what the model does."""

import logging
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from tensorflowonspark import storage
from tensorflowonspark.errors import SpecError
from tensorflowonspark.exports.formats import SAVED_MODEL, WEIGHTS, ExportFormat, require_packages
from tensorflowonspark.exports.on_tensorflow import write_on_tensorflow
from tensorflowonspark.exports.parity import Arrays, apply, can_apply, require_equal
from tensorflowonspark.exports.served_model import ServedModel
from tensorflowonspark.keras.hooks import keras_backend
from tensorflowonspark.keras.jax.saving_alone import saved_by_one
from tensorflowonspark.run_manifest import BESIDE_EXPORT, IN_EXPORT

_log = logging.getLogger(__name__)
_FILE = "model"  # in the directory of a version, before the ending
_CHECKED_ROWS = 32
_OF_EVERY_MODEL = (SAVED_MODEL.name,)
_OF_TF_KERAS = (*_OF_EVERY_MODEL, "keras", "h5", WEIGHTS.name)


def is_of(package: str, model: Any) -> bool:
    """Return whether a model's class is from a package, ``keras`` (Keras 3) or ``tf_keras``, or derives from one."""
    return any(kind.__module__.split(".")[0] == package for kind in type(model).__mro__)


@dataclass(frozen=True)
class Comparison:
    """The rows with which an export is compared with its model before anybody can see it."""

    rows: Any  # as the model takes them; None if there are none
    is_asked: bool  # whether the program wants it: where it can't be made that is then an error, and else a warning
    tolerance: float
    remedy: str = "check_rows=0 compares nothing, as for a model that draws random numbers"


NOT_COMPARED = Comparison(None, is_asked=False, tolerance=0.0)


def comparison(check_rows: Any, to: ExportFormat, seen: Any, tolerance: float) -> Comparison:
    """Return with which rows a format is compared: a number of those that the program has seen, or those given.

    By default what another library computes is compared with 32 rows. Raises SpecError if these can't be had.
    """
    if isinstance(tolerance, bool) or not isinstance(tolerance, (int, float)) or not tolerance >= 0:
        raise SpecError(f"tolerance={tolerance!r}: expected a number from 0 on: of the largest value of an output")
    is_asked = check_rows is not None
    if check_rows is None:
        check_rows = _CHECKED_ROWS if to.is_converted else 0
    if isinstance(check_rows, bool) or (isinstance(check_rows, int) and check_rows < 0):
        raise SpecError(f"check_rows={check_rows!r}: expected a number of rows, or rows as the model takes them")
    if not isinstance(check_rows, int):
        return Comparison(check_rows, is_asked, tolerance)
    if check_rows and is_asked and to is WEIGHTS:
        raise SpecError("check_rows: format='weights' has no model that could be applied to rows")
    if check_rows and seen is None:
        if is_asked:
            raise SpecError(
                f"check_rows={check_rows}: this program has taken no rows of a feed to compare the export with: give "
                "some as the model takes them (check_rows=features)"
            )
        _log.warning(
            "format=%r: the export is not compared with the model, since this program has taken no rows of a feed: "
            "give some as the model takes them (check_rows=features), or check_rows=0",
            to.name,
        )
    return Comparison(_first(seen, check_rows) if check_rows and seen is not None else None, is_asked, tolerance)


def _first(rows: Any, number: int) -> Any:
    return {name: each[:number] for name, each in rows.items()} if isinstance(rows, dict) else rows[:number]


def require_writable(model: Any, to: ExportFormat, check_rows: Any = None, *, is_numbered: bool = False) -> None:
    """Refuse a format that a model of this library, or a program of this backend, can't be written in."""
    if is_of("keras", model):
        require_packages(to)
        if not divided_layers(model):
            return
        if to.name not in (SAVED_MODEL.name, *(() if is_numbered else ("keras",))):
            formats = "'tf_saved_model'" if is_numbered else "'keras' or 'tf_saved_model'"
            raise SpecError(
                f"format={to.name!r}: a model with a ShardedEmbedding is written block by block, as {formats}"
            )
        if check_rows:
            raise SpecError("check_rows: a model with a ShardedEmbedding has its rows on all workers, and the chief "
                            "alone can't apply it")  # fmt: skip
        return
    here, others = ("tf_keras", _OF_TF_KERAS) if is_of("tf_keras", model) else (type(model).__name__, _OF_EVERY_MODEL)
    if to.name not in others:
        raise SpecError(f"format={to.name!r}: {here} writes {', '.join(others)}; models of Keras 3 have all formats")


def save(model: Any, path: str) -> None:
    """Write a model to a local path: one file with the ending ``.keras`` or ``.h5``, otherwise a SavedModel."""
    if path.endswith(WEIGHTS.ending):
        model.save_weights(path)
    elif path.endswith((".keras", ".h5")):
        model.save(path)
    elif hasattr(model, "export"):
        with redirect_stdout(StringIO()):  # Keras prints the path, which is a temporary directory
            model.export(path)
    else:
        import tensorflow as tf

        tf.saved_model.save(model, path)


def write_as(
    to: ExportFormat,
    compare: Comparison,
    served: Callable[..., ServedModel] = ServedModel,
    *,
    in_directory: bool = False,
) -> Callable[[Any, str], None]:
    """Return what writes a model to a local path in a format, and compares it.

    `served` makes of the model and of rows what is converted; `in_directory` puts a file into a directory.
    """

    def write(model: Any, path: str) -> None:
        if in_directory and to.ending:
            Path(path).mkdir()
            path = f"{path}/{_FILE}{to.ending}"
        if to.is_converted or compare.rows is not None or served is not ServedModel:
            _write_served(model, path, to, compare, served)
        else:
            save(model, path)

    return write


def _write_served(
    model: Any, path: str, to: ExportFormat, compare: Comparison, served: Callable[..., ServedModel]
) -> None:
    made = served(model, rows=compare.rows)
    compares = compare.rows is not None and _can_compare(made, to, compare)
    found: Arrays = {}
    is_served = to.is_converted or (made.is_wrapped and to is SAVED_MODEL)
    if is_served and keras_backend() != "tensorflow":
        found = write_on_tensorflow(made, path, to, served, compares=compares)
    elif is_served:
        made.write(path, to)
    else:
        save(model, path)
    if not compares:
        return
    if to.name in ("keras", "h5"):
        import keras

        with keras.saving.custom_object_scope(made.objects):
            found = served(keras.models.load_model(path, compile=False), rows=compare.rows).results()
    found = found or apply(path, to, made.row_values())
    what = f"format={to.name!r}: the export"
    difference = require_equal(made.results(), found, compare.tolerance, what, compare.remedy)
    _log.info("the export (%s) gives what the model gives: largest difference %.3g", to.name, difference)


def _can_compare(made: ServedModel, to: ExportFormat, compare: Comparison) -> bool:
    if not can_apply(to):
        return False
    try:
        made.require_rows()
    except SpecError as error:
        if compare.is_asked:
            raise
        _log.warning("format=%r: the export is not compared with the model: %s", to.name, error)
        return False
    return True


def export(
    model: Any,
    path: str,
    is_chief: bool,
    scratch: str | None,
    write: Callable[[Any, str], None] = save,
    manifest: Callable[[str], None] | None = None,
) -> None:
    """Write a trained model to any file system: the chief writes, and the others take part as TensorFlow needs.

    An existing file or directory is replaced. `write` gets a local path, whose last part is that of `path`. The
    `manifest`, if there is one, writes the run's to a local path: it is in the directory, or beside the file.
    """
    beside, is_file = f"{path.rstrip('/')}{BESIDE_EXPORT}", False

    def write_both(model: Any, local: str) -> None:
        nonlocal is_file
        write(model, local)
        is_file = Path(local).is_file()
        if is_file:
            storage.remove(beside)  # that of the model that is replaced
        elif manifest is not None:
            manifest(f"{local}/{IN_EXPORT}")

    _export(model, path, is_chief, scratch, write_both if is_chief else write)
    if is_file and manifest is not None:
        storage.publish(beside, manifest, scratch)


def _export(model: Any, path: str, is_chief: bool, scratch: str | None, write: Callable[[Any, str], None]) -> None:
    if divided := divided_layers(model):
        from tensorflowonspark.keras.embedding.table_export import send_rows, write_model

        if is_chief:
            storage.publish(path, lambda local: write_model(model, divided, local, write), scratch)
        else:
            send_rows(divided)
    elif keras_backend() == "jax" and is_of("keras", model):
        with saved_by_one(model, "ctx.export", saves=is_chief):
            if is_chief:
                storage.publish(path, lambda local: write(model, local), scratch)
    elif is_chief:
        storage.publish(path, lambda local: write(model, local), scratch)
    elif not is_of("keras", model):  # TensorFlow reads some variables from all workers together
        with TemporaryDirectory(prefix="tfos-", dir=scratch) as unused:
            write(model, str(PurePosixPath(unused) / PurePosixPath(path).name))


def divided_layers(model: Any) -> list[Any]:
    """Return the layers of a model whose tables are divided among the workers, if the program has any."""
    if "tensorflowonspark.keras.embedding" not in sys.modules or not is_of("keras", model):
        return []
    from tensorflowonspark.keras.embedding.table_export import sharded_layers

    return sharded_layers(model)

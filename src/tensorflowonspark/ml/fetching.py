"""Models that others have written, as bundles: the ``.keras`` file and the SavedModel on any file system."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tensorflowonspark import storage
from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.structure import tensor_info
from tensorflowonspark.ml.code import code_for
from tensorflowonspark.ml.model_bundle import MODEL_FILE, SAVED_FILES, ModelBundle, described, zipped
from tensorflowonspark.ml.outputs import OutputInfo
from tensorflowonspark.ml.refusal import check_code
from tensorflowonspark.ml.serialization import bundle_of_file, load_model


def fetch_keras_model(path: str, library: str, custom_objects: Mapping[str, Any] | None = None) -> ModelBundle:
    """Return the bundle of a ``.keras`` file on any file system.

    Raises SpecError if there is no such file, Keras can't read it, or code is refused and tf_keras reads it.
    """
    storage.use_session()
    files, within = storage.file_system(path)
    if files.isdir(within):
        raise SpecError(
            f"{path} is a directory: KerasModel.from_saved_model takes a SavedModel, and a file of Keras ends in .keras"
        )
    with tempfile.TemporaryDirectory(prefix="tfos-") as scratch:
        local = Path(scratch, MODEL_FILE)
        if not storage.fetch(path, str(local)):
            raise SpecError(f"{path}: there is no such file")
        data = local.read_bytes()
    given = ModelBundle(library, data)
    distrusted = check_code(path, given.code_names)
    model = load_model(replace(given, distrusted=distrusted), code_for(custom_objects).load(library))
    return replace(described(bundle_of_file(library, data, model), model), distrusted=distrusted)


def fetch_saved_model(path: str, signature: str, tags: Sequence[str] = ()) -> ModelBundle:
    """Return the bundle of a SavedModel on any file system.

    The tags are those of its graph; none if it has only one. Raises SpecError if there is no SavedModel, or no such
    signature or tags in it, when it lists the existing ones; or if code is refused, which its graph can be.
    """
    import tensorflow as tf

    storage.use_session()
    check_code(path, ["saved_model"])
    with tempfile.TemporaryDirectory(prefix="tfos-") as scratch:
        local = f"{scratch}/model"
        if not storage.fetch(path, local):
            raise SpecError(f"{path}: there is no such directory")
        if not any(Path(local, name).exists() for name in SAVED_FILES):
            held = sorted(each.name for each in Path(local).glob("*")) or "nothing"
            raise SpecError(f"there is no SavedModel at {path} (which has a {SAVED_FILES[0]}); it holds {held}")
        try:
            signatures = tf.saved_model.load(local, tags=list(tags) or None).signatures
        except (OSError, RuntimeError, ValueError) as error:
            reason = str(error).replace(local, path)
            raise SpecError(f"TensorFlow can't load the SavedModel at {path}: {reason}") from error
        data = zipped(local)
    if signature not in signatures:
        raise SpecError(f"the SavedModel at {path} has no signature {signature!r}, but {sorted(signatures)}")
    function = signatures[signature]
    taken = function.structured_input_signature[1]
    inputs = tuple(tensor_info(name, spec) for name, spec in taken.items())
    outputs = tuple(OutputInfo(tensor_info(name, spec)) for name, spec in function.structured_outputs.items())
    return ModelBundle("saved_model", data, inputs, outputs, signature=signature, tags=tuple(tags))

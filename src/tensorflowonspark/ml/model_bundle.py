"""A model bundle: a trained model as bytes, and the description of its tensors."""

import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from tensorflowonspark.errors import SpecError
from tensorflowonspark.ml.code import Code
from tensorflowonspark.ml.inputs import TensorInfo
from tensorflowonspark.ml.outputs import Meaning, OutputInfo, meaning_of
from tensorflowonspark.ml.serialization import Serialized

__all__ = ["ModelBundle", "from_model", "from_saved_model", "read_saved", "tensor_info", "write_saved", "zipped"]

_MODEL_FILE = "model.keras"
_SAVED_MODEL = "saved_model"
_FUNCTION = "function.pkl"
_CODE = "code.pkl"
_SAVED_FILES = ("saved_model.pb", "saved_model.pbtxt")


@dataclass(frozen=True)
class ModelBundle:
    """A model.

    Attributes
    ----------
    kind : str
        ``keras``, ``tf_keras``, ``saved_model`` or ``function``.
    data : bytes
        A ``.keras`` file, a zipped SavedModel, or a pickled function of a dict of arrays.
    inputs, outputs : tuple
        Its tensors.
    layers : dict
        The outputs of its layers by name, for a Keras model whose layers have one each.
    signature : str
        Of a SavedModel.
    tags : tuple of str
        Of the graph in a SavedModel that is meant; none if it has but one.
    code : Code
        The user's own classes and functions that a Keras model is made of.
    """

    kind: str
    data: bytes = field(repr=False)
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[OutputInfo, ...] = ()
    layers: Mapping[str, TensorInfo] = field(default_factory=dict, repr=False)
    signature: str = ""
    tags: tuple[str, ...] = ()
    code: Code = field(default_factory=Code)

    @property
    def digest(self) -> str:
        """A name for the contents."""
        return sha256(self.data).hexdigest()[:32]

    @property
    def carries(self) -> list[str]:
        """The names of the user's code in it."""
        return [_FUNCTION] if self.kind == "function" else list(self.code.names)

    def described(self) -> dict[str, Any]:
        """Return all but the data as what JSON can hold."""
        return {
            "kind": self.kind,
            "inputs": [_plain(each) for each in self.inputs],
            "outputs": [
                {**_plain(each.tensor), "meaning": each.meaning.value, "logits": each.logits} for each in self.outputs
            ],
            "layers": [_plain(each) for each in self.layers.values()],
            "signature": self.signature,
            "tags": list(self.tags),
            "code": list(self.code.names),  # names of classes and functions in a pickle: to use it runs their code
        }


def _plain(tensor: TensorInfo) -> dict[str, Any]:
    return {"name": tensor.name, "shape": list(tensor.shape), "dtype": tensor.dtype}


def _tensor(plain: Mapping[str, Any]) -> TensorInfo:
    return TensorInfo(plain["name"], tuple(plain["shape"]), plain["dtype"])


def from_model(frozen: Serialized, model: Any, loss: Any = None) -> ModelBundle:
    """Return a Keras model as an artefact.

    Parameters
    ----------
    frozen : Frozen
        Its file, and its code.
    model : keras.Model
        The same; it must have been built.
    loss : object, optional
        What it was trained with, if that is not what it was compiled with.
    """
    loss = loss if loss is not None else getattr(model, "loss", None)
    outputs = []
    for place, (name, tensor) in enumerate(_named_outputs(model).items()):
        info = tensor_info(name, tensor)
        outputs.append(OutputInfo(info, *meaning_of(_one(loss, name, place), _activation(model, tensor), info)))
    inputs = tuple(tensor_info(_plain_name(each.name), each) for each in model.inputs or [])
    return ModelBundle(frozen.library, frozen.file, inputs, tuple(outputs), _layers(model), code=frozen.code)


def _named_outputs(model: Any) -> dict[str, Any]:
    tensors = list(model.outputs or [])
    given = getattr(model, "output", None)
    if isinstance(given, Mapping):
        return dict(given)  # in another order than `outputs`
    names = list(getattr(model, "output_names", None) or [])
    if len(names) != len(tensors) or len(set(names)) != len(names):
        names = [f"output_{place}" for place in range(len(tensors))]
    return dict(zip(names, tensors, strict=True))


def _one(loss: Any, name: str, place: int) -> Any:
    """Return the loss of one output."""
    if isinstance(loss, Mapping):
        return loss.get(name)
    if isinstance(loss, (list, tuple)):
        return loss[place] if place < len(loss) else None
    return loss


def _activation(model: Any, tensor: Any) -> str:
    history = getattr(tensor, "_keras_history", None)
    layer = history[0] if history else model.layers[-1]
    function = getattr(layer, "activation", None)
    return str(getattr(function, "__name__", "")) if function is not None else type(layer).__name__.lower()


def tensor_info(name: str, tensor: Any) -> TensorInfo:
    """Return what a tensor with a batch's dimension is for one row.

    Raises
    ------
    SpecError
        If the number of its dimensions is not known.
    """
    if getattr(tensor.shape, "rank", 0) is None:
        raise SpecError(f"of the tensor {name!r} the number of dimensions is not known: declare it (tf.ensure_shape)")
    shape = tuple(None if size is None else int(size) for size in tuple(tensor.shape)[1:])
    dtype = getattr(tensor.dtype, "name", None) or str(tensor.dtype)
    return TensorInfo(name, shape, dtype)


def _plain_name(name: str) -> str:
    return name.split(":", maxsplit=1)[0]


def _layers(model: Any) -> dict[str, TensorInfo]:
    found = {}
    for layer in model.layers:
        tensor = getattr(layer, "output", None) if getattr(layer, "_inbound_nodes", ()) else None
        if tensor is not None and hasattr(tensor, "shape"):
            found[layer.name] = tensor_info(layer.name, tensor)
    return found


def from_saved_model(path: str, signature: str, tags: Sequence[str] = (), origin: str = "") -> ModelBundle:
    """Return a SavedModel's directory as an artefact.

    Parameters
    ----------
    path : str
        The directory, on this machine.
    signature : str
        Which of its signatures is meant.
    tags : sequence of str
        Those of the graph that is meant; none if there is but one.
    origin : str
        Where the user has the directory, for the errors.

    Raises
    ------
    SpecError
        If it is none, or has no such signature or tags; it lists those that there are.
    """
    import tensorflow as tf

    origin = origin or path
    if not any(Path(path, name).exists() for name in _SAVED_FILES):
        held = sorted(each.name for each in Path(path).glob("*")) or "nothing"
        raise SpecError(f"there is no SavedModel at {origin} (which has a {_SAVED_FILES[0]}); it holds {held}")
    try:
        signatures = tf.saved_model.load(path, tags=list(tags) or None).signatures
    except (OSError, RuntimeError, ValueError) as error:
        told = str(error).replace(path, origin)
        raise SpecError(f"TensorFlow can't load the SavedModel at {origin}: {told}") from error
    if signature not in signatures:
        raise SpecError(f"the SavedModel at {origin} has no signature {signature!r}, but {sorted(signatures)}")
    function = signatures[signature]
    taken = function.structured_input_signature[1]
    inputs = tuple(tensor_info(name, spec) for name, spec in taken.items())
    outputs = tuple(OutputInfo(tensor_info(name, spec)) for name, spec in function.structured_outputs.items())
    return ModelBundle("saved_model", zipped(path), inputs, outputs, signature=signature, tags=tuple(tags))


def zipped(directory: str) -> bytes:
    """Return a directory's files in one."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for file in sorted(Path(directory).rglob("*")):
            archive.write(file, file.relative_to(directory))
    return buffer.getvalue()


def write_saved(artefact: ModelBundle, directory: str) -> None:
    """Write the model into a directory as what Keras or TensorFlow reads by itself."""
    Path(directory).mkdir(parents=True, exist_ok=True)
    if artefact.kind == "saved_model":
        with zipfile.ZipFile(io.BytesIO(artefact.data)) as archive:
            archive.extractall(Path(directory, _SAVED_MODEL))
    else:
        Path(directory, _FUNCTION if artefact.kind == "function" else _MODEL_FILE).write_bytes(artefact.data)
    if artefact.code:
        Path(directory, _CODE).write_bytes(artefact.code.pickle)


def read_saved(directory: str, described: Mapping[str, Any]) -> ModelBundle:
    """Return what was written, with what its metadata says of it."""
    kind = described["kind"]
    if kind == "saved_model":
        data = zipped(str(Path(directory, _SAVED_MODEL)))
    else:
        data = Path(directory, _FUNCTION if kind == "function" else _MODEL_FILE).read_bytes()
    names = tuple(described.get("code", ()))
    return ModelBundle(
        kind,
        data,
        tuple(map(_tensor, described["inputs"])),
        tuple(OutputInfo(_tensor(each), Meaning(each["meaning"]), each["logits"]) for each in described["outputs"]),
        {each["name"]: _tensor(each) for each in described["layers"]},
        described["signature"],
        tuple(described.get("tags", ())),
        Code(names, Path(directory, _CODE).read_bytes()) if names else Code(),
    )

"""Model bundles: a model as bytes, with the code that it needs and the description of its tensors."""

import io
import pickletools
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.structure import Path as TensorPath
from tensorflowonspark.keras.structure import TensorInfo, at, inputs_of, output_paths, output_structure, tensor_info
from tensorflowonspark.ml.code import LIBRARIES, Code
from tensorflowonspark.ml.outputs import Meaning, OutputInfo, meaning_of
from tensorflowonspark.ml.refusal import check_code

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MODEL_FILE = "model.keras"
_SAVED_MODEL = "saved_model"
SAVED_FILES = ("saved_model.pb", "saved_model.pbtxt")  # one of which each SavedModel has
_FUNCTION = "function.pkl"
_CODE = "code.pkl"
# The kinds of models whose data can run any code, with the name of that in errors. Of Keras 3 `safe_mode` refuses it.
_CODE_OF = {"function": _FUNCTION, "saved_model": _SAVED_MODEL, "tf_keras": f"{MODEL_FILE} of tf_keras"}
_KINDS = ("keras", *_CODE_OF)


@dataclass(frozen=True)
class ModelBundle:
    """A model, as it is sent to nodes and executors, and saved."""

    kind: str  # ``keras``, ``tf_keras``, ``saved_model`` or ``function``
    data: bytes = field(repr=False)  # a ``.keras`` file, a zipped SavedModel, or a pickled function of a dict of arrays
    inputs: tuple[TensorInfo, ...] = ()  # none if it has yet to be trained, as of outputs
    outputs: tuple[OutputInfo, ...] = ()
    # the outputs of its layers by name, for layers of a Keras model that have one each
    layers: Mapping[str, TensorInfo] = field(default_factory=dict, repr=False)
    signature: str = ""  # the signature of a SavedModel that is called
    tags: tuple[str, ...] = ()  # of a SavedModel's graph; none if it has only one
    code: Code = field(default_factory=Code)  # the user's own, in a Keras model
    distrusted: bool = False  # whether it came from where code is refused

    @cached_property
    def digest(self) -> str:
        """A hash of the data, which names it."""
        return sha256(self.data).hexdigest()[:32]

    @property
    def code_names(self) -> list[str]:
        """The names of the code that it can run."""
        return [*filter(None, [_CODE_OF.get(self.kind)]), *self.code.names]

    def require_keras(self) -> None:
        """Raise a SpecError if it is a SavedModel or a function."""
        if self.kind not in LIBRARIES:
            raise SpecError(f"this stage holds a {self.kind}, and no Keras model")

    def to_metadata(self) -> dict[str, Any]:
        """Return all but the data, as JSON represents it."""
        return {
            "kind": self.kind,
            "inputs": [asdict(each) for each in self.inputs],
            "outputs": [
                {**asdict(each.tensor), "meaning": each.meaning.value, "logits": each.logits} for each in self.outputs
            ],
            "layers": [asdict(each) for each in self.layers.values()],
            "signature": self.signature,
            "tags": list(self.tags),
            "code": list(self.code.names),  # names in a pickle, which runs code when it is loaded
        }


def _tensor(plain: Mapping[str, Any]) -> TensorInfo:
    return TensorInfo(plain["name"], tuple(plain["shape"]), plain["dtype"])


def described(bundle: ModelBundle, model: Any, loss: Any = None) -> ModelBundle:
    """Return the bundle of a Keras model with the description of its tensors.

    The model is built. `loss` is the one that it was trained with, if it was compiled with another.
    """
    require_outputs(model)
    loss = loss if loss is not None else getattr(model, "loss", None)
    outputs, structure = [], output_structure(model)
    for place, (name, path) in enumerate(output_paths(model).items()):
        tensor = at(structure, path)
        info = tensor_info(name, tensor)
        one = loss_of_output(loss, name, path, place)
        outputs.append(OutputInfo(info, *meaning_of(one, _activation(model, tensor), info)))
    return replace(bundle, inputs=tuple(inputs_of(model)), outputs=tuple(outputs), layers=_layers(model))


def require_outputs(model: Any) -> None:
    """Refuse a Keras model that has no inputs and outputs to describe, as a class with a ``call`` of its own.

    Raises SpecError if it has none, and won't when it is built, as a ``Sequential`` will.
    """
    if not (hasattr(type(model), "outputs") or hasattr(model, "outputs")):
        raise SpecError(
            f"{type(model).__name__} is a class of models with a call of its own, and a stage needs a model with "
            "inputs and outputs: make one of its layers (inputs = keras.Input(shape); keras.Model(inputs, outputs)), "
            "or train with tfos.run, export, and take KerasModel.from_saved_model"
        )


def loss_of_output(loss: Any, name: str, path: TensorPath, place: int) -> Any:
    """Return the loss of one output, by its name, the way to it, and its place among the outputs.

    `loss` is one for all outputs, or losses in the structure of the outputs or by their names.
    """
    if isinstance(loss, Mapping):
        if path and path[0] in loss:
            return loss_of_output(loss[path[0]], name, path[1:], 0)
        return loss.get(name)
    if isinstance(loss, (list, tuple)):
        place = path[0] if path and isinstance(path[0], int) else place
        return loss_of_output(loss[place], name, path[1:], 0) if place < len(loss) else None
    return loss


def _activation(model: Any, tensor: Any) -> str:
    history = getattr(tensor, "_keras_history", None)
    layer = history[0] if history else model.layers[-1]
    function = getattr(layer, "activation", None)
    return str(getattr(function, "__name__", "")) if function is not None else type(layer).__name__.lower()


def _layers(model: Any) -> dict[str, TensorInfo]:
    found = {}
    for layer in model.layers:
        tensor = getattr(layer, "output", None)  # there is none before its first call
        if tensor is not None and hasattr(tensor, "shape"):
            found[layer.name] = tensor_info(layer.name, tensor)
    return found


def zipped(directory: str) -> bytes:
    """Return a directory's files as a zip archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for file in sorted(Path(directory).rglob("*")):
            archive.write(file, file.relative_to(directory))
    return buffer.getvalue()


def write_saved(bundle: ModelBundle, directory: str) -> None:
    """Write the model into a directory, in the format that Keras or TensorFlow reads."""
    Path(directory).mkdir(parents=True, exist_ok=True)
    if bundle.kind == "saved_model":
        with zipfile.ZipFile(io.BytesIO(bundle.data)) as archive:
            archive.extractall(Path(directory, _SAVED_MODEL))
    else:
        Path(directory, _FUNCTION if bundle.kind == "function" else MODEL_FILE).write_bytes(bundle.data)
    if bundle.code:
        Path(directory, _CODE).write_bytes(bundle.code.pickle)


def read_saved(
    directory: str, metadata: Mapping[str, Any], path: str, spark: "SparkSession | None" = None
) -> ModelBundle:
    """Return the bundle that `write_saved` wrote into a directory of this machine; nothing of it runs.

    The metadata is that of `ModelBundle.to_metadata`, and `path` is the user's own path of the stage, for errors.
    Raises SpecError if there is no model, the metadata is damaged, or code is refused, by `spark` among others, and the
    model can run some.
    """
    kind = metadata.get("kind")
    if kind not in _KINDS:
        raise SpecError(f"{path}: its metadata names the kind of model {kind!r}: expected one of {', '.join(_KINDS)}")
    try:
        names = tuple(map(str, metadata.get("code", ())))
        if kind == "saved_model":
            data = zipped(str(Path(directory, _SAVED_MODEL)))
        else:
            data = Path(directory, _FUNCTION if kind == "function" else MODEL_FILE).read_bytes()
        bundle = ModelBundle(
            kind,
            data,
            tuple(map(_tensor, metadata["inputs"])),
            tuple(OutputInfo(_tensor(each), Meaning(each["meaning"]), each["logits"]) for each in metadata["outputs"]),
            {each["name"]: _tensor(each) for each in metadata["layers"]},
            metadata["signature"],
            tuple(metadata.get("tags", ())),
            Code(names, Path(directory, _CODE).read_bytes()) if names else Code(),
        )
    except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        raise SpecError(f"{path} holds no model that can be read ({type(error).__name__}: {error})") from error
    bundle = replace(bundle, distrusted=check_code(path, bundle.code_names, spark))
    _require_whole(bundle, path)
    return bundle


def _require_whole(bundle: ModelBundle, path: str) -> None:
    """Refuse a file that is cut or damaged, as by a copy that was interrupted; nothing of it runs."""
    name, check = {
        "function": (_FUNCTION, _require_pickle),
        "saved_model": (_SAVED_MODEL, _require_saved_model),
    }.get(bundle.kind, (MODEL_FILE, _require_archive))
    checked = [(name, check, bundle.data)]
    if bundle.code:
        checked.append((_CODE, _require_pickle, bundle.code.pickle))
    for name, check, data in checked:
        try:
            check(data)
        except (EOFError, OSError, RuntimeError, ValueError, zipfile.BadZipFile, zlib.error) as error:
            raise SpecError(f"{path}: model/{name} is cut or damaged: {error}. Copy or save the stage again") from error


def _require_pickle(data: bytes) -> None:
    for _ in pickletools.genops(data):  # reads the instructions, and follows none
        pass


def _require_archive(data: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if damaged := archive.testzip():
            raise ValueError(f"{damaged} in it has another checksum")


def _require_saved_model(data: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if not {*SAVED_FILES} & {*archive.namelist()}:
            raise ValueError(f"it has no {SAVED_FILES[0]}")

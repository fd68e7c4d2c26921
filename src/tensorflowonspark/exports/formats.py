"""The formats in which a model is exported, and which one a call means."""

from dataclasses import dataclass
from importlib.util import find_spec

from tensorflowonspark.errors import SpecError, did_you_mean


@dataclass(frozen=True)
class ExportFormat:
    """A format: what it is called, what its file ends in, and which packages write and apply it."""

    name: str
    ending: str = ""  # of its file; none for a directory
    packages: tuple[str, ...] = ()  # that Keras needs to write it, by the names of their modules
    runtime: str = ""  # the module that applies it; none if Keras or TensorFlow does
    extra: str = ""  # of this project, which installs both

    @property
    def is_converted(self) -> bool:
        """Whether another library computes it, with operations of its own."""
        return bool(self.runtime)

    @property
    def has_runtime(self) -> bool:
        """Whether what applies it is installed here."""
        return not self.runtime or find_spec(self.runtime) is not None

    @property
    def install(self) -> str:
        """The command that installs what writes and applies it."""
        return f'pip install "tensorflowonspark[{self.extra}]"'


FORMATS = {
    each.name: each
    for each in (
        ExportFormat("keras", ".keras"),
        ExportFormat("h5", ".h5"),
        ExportFormat("weights", ".weights.h5"),
        ExportFormat("tf_saved_model"),
        ExportFormat("onnx", ".onnx", ("tf2onnx", "onnx"), "onnxruntime", "onnx"),
        ExportFormat("litert", ".tflite", (), "ai_edge_litert", "litert"),
        ExportFormat("openvino", "", ("openvino",), "openvino", "openvino"),
    )
}
SAVED_MODEL, WEIGHTS = FORMATS["tf_saved_model"], FORMATS["weights"]
OPENVINO_FILE = "model.xml"  # in its directory, beside the weights


def format_of(path: str, name: str | None = None, *, numbered: bool = False) -> ExportFormat:
    """Return the format of an export: the one that is named, or else the one that the path ends in.

    A path without one of the endings is a SavedModel's directory. With `numbered` it is the directory above the
    versions, and has no ending. Raises SpecError if there is no such format, or the path ends otherwise.

    Examples
    --------
    >>> format_of("model.onnx").name, format_of("model").name, format_of("model.weights.h5").name
    ('onnx', 'tf_saved_model', 'weights')
    >>> format_of("model.keras", "onx")
    Traceback (most recent call last):
        ...
    tensorflowonspark.errors.SpecError: format='onx': there is none of this name (did you mean 'onnx'?); there are \
keras, h5, weights, tf_saved_model, onnx, litert, openvino
    """
    if name is not None and name not in FORMATS:
        near = did_you_mean(str(name), FORMATS)
        raise SpecError(f"format={name!r}: there is none of this name{near}; there are {', '.join(FORMATS)}")
    ends = [each for each in FORMATS.values() if each.ending and path.rstrip("/").endswith(each.ending)]
    of_path = max(ends, key=lambda each: len(each.ending), default=None)
    if numbered:
        if of_path is not None:
            what = f"the versions are directories in it, as {path.removesuffix(of_path.ending)}/1"
            raise SpecError(f"{path}: with version= the path has no ending {of_path.ending!r}: {what}")
        return FORMATS[name or SAVED_MODEL.name]
    found = FORMATS[name] if name is not None else of_path or SAVED_MODEL
    if of_path is not found and (found.ending or of_path is not None):
        has = f"of {of_path.name}" if of_path is not None else "of no format"
        expected = f"the ending {found.ending!r}" if found.ending else "a directory's path without ending"
        raise SpecError(f"{path} has the ending {has}, and format={found.name!r} takes {expected}")
    return found


def require_packages(found: ExportFormat) -> None:
    """Refuse a format that can't be written here, since a package is missing, which the error names."""
    if missing := [each for each in found.packages if find_spec(each) is None]:
        raise SpecError(
            f"format={found.name!r} needs {' and '.join(missing)}, which this Python has not: {found.install}"
        )

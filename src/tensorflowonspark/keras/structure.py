"""Names and forms of the inputs and outputs of a Keras model, and values by name in the structure that the model has.

A tensor in a list has the name of its layer, and one in a dict its key. One below has the keys and places on the way to
it, joined by ``_``: those of ``{"a": x, "b": [y, z]}`` are ``a``, ``b_0`` and ``b_1``.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tensorflowonspark.errors import SpecError

Path = tuple[Any, ...]  # keys and places on the way to a tensor


@dataclass(frozen=True)
class TensorInfo:
    """The name, shape and dtype of a model's tensor; the shape is one row's, with None for a size that varies."""

    name: str
    shape: tuple[int | None, ...]
    dtype: str

    @property
    def is_fixed(self) -> bool:
        """Whether all rows have the same known shape."""
        return None not in self.shape


def leaves(structure: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield what mappings, lists and tuples hold at any depth, each with the way to it.

    Examples
    --------
    >>> list(leaves({"a": 1, "b": [2, 3]}))
    [(('a',), 1), (('b', 0), 2), (('b', 1), 3)]
    """
    if isinstance(structure, Mapping):
        for key, each in structure.items():
            yield from leaves(each, (*path, key))
    elif isinstance(structure, (list, tuple)):
        for place, each in enumerate(structure):
            yield from leaves(each, (*path, place))
    else:
        yield path, structure


def input_paths(model: Any) -> dict[str, Path]:
    """Return the way to each input of a model by its name, in the model's order; none if they are unknown."""
    structure = input_structure(model)
    return _named(structure, [each.name.partition(":")[0] for _, each in leaves(structure)], "input")


def output_paths(model: Any) -> dict[str, Path]:
    """Return the way to each output of a model by its name, in the model's order; none if they are unknown."""
    structure = output_structure(model)
    names, tensors = list(getattr(model, "output_names", None) or []), list(getattr(model, "outputs", None) or [])
    if len(names) != len(tensors) or len(set(names)) != len(names):
        names = [f"output_{place}" for place in range(len(tensors))]
    return _named(structure, names, "output")


def input_structure(model: Any) -> Any:
    """Return a model's inputs in the structure in which it takes them; an empty list if they are unknown."""
    return _structure(model, "input")


def output_structure(model: Any) -> Any:
    """Return a model's outputs in the structure in which it returns them; an empty list if they are unknown."""
    return _structure(model, "output")


def at(structure: Any, path: Path) -> Any:
    """Return what a path leads to."""
    for key in path:
        structure = structure[key]
    return structure


def inputs_of(model: Any) -> list[TensorInfo]:
    """Return the inputs of a Keras model, in order; none if they are unknown, as before its first call."""
    if not getattr(model, "built", True):
        return []
    structure = input_structure(model)
    return [tensor_info(name, at(structure, path)) for name, path in input_paths(model).items()]


def outputs_of(model: Any) -> dict[str, TensorInfo]:
    """Return the outputs of a Keras model by name; none if they are unknown, as before its first call."""
    structure = output_structure(model)
    return {name: tensor_info(name, at(structure, path)) for name, path in output_paths(model).items()}


def tensor_info(name: str, tensor: Any) -> TensorInfo:
    """Return the description of one row of a tensor, whose first dimension is the batch's.

    Raises SpecError if the number of its dimensions is unknown.
    """
    if getattr(tensor.shape, "rank", 0) is None:
        raise SpecError(f"the number of dimensions of the tensor {name!r} is unknown: declare it (tf.ensure_shape)")
    shape = tuple(None if size is None else int(size) for size in tuple(tensor.shape)[1:])
    dtype = getattr(tensor.dtype, "name", None) or str(tensor.dtype)
    return TensorInfo(name, shape, dtype)


def as_inputs(model: Any, values: Any) -> Any:
    """Return one value, or values by the inputs' names, as the model takes them.

    Keras takes values by name itself where the inputs are a list.
    """
    return _structured(input_structure(model), input_paths(model), values)


def as_outputs(model: Any, values: Any) -> Any:
    """Return one value, or values by the outputs' names, as the model returns them: labels, or their weights."""
    return _structured(output_structure(model), output_paths(model), values)


def by_output(model: Any, results: Any) -> dict[str, Any]:
    """Return what a model has returned by the outputs' names."""
    paths = output_paths(model)
    if len(paths) == 1:  # a list of one tensor may be returned as that tensor
        return dict(zip(paths, (each for _, each in leaves(results)), strict=True))
    return {name: at(results, path) for name, path in paths.items()}


def _structure(model: Any, name: str) -> Any:
    tensors = list(getattr(model, f"{name}s", None) or [])
    given = None
    with suppress(AttributeError, RuntimeError, ValueError):  # of a Sequential, or of a layer that was called twice
        given = getattr(model, name) if tensors else []
    held = sorted(id(each) for _, each in leaves(given))
    return given if held == sorted(map(id, tensors)) else tensors


def _named(structure: Any, own: Sequence[str], what: str) -> dict[str, Path]:
    """Return the path of each tensor by its name, which is its own where no key or list within a list leads to it."""
    paths = [path for path, _ in leaves(structure)]
    if any(len(path) > 1 or isinstance(path[0], str) for path in paths if path):
        own = ["_".join(map(str, path if isinstance(path[0], str) else (what, *path))) for path in paths]
    for name in own:
        if own.count(name) > 1:
            raise SpecError(f"two {what}s of the model have the name {name!r}: rename a key of its {what}s")
    return dict(zip(own, paths, strict=True))


def _structured(structure: Any, paths: Mapping[str, Path], values: Any) -> Any:
    if not isinstance(structure, Mapping) and all(path == path[:1] for path in paths.values()):
        return values
    by_name = values if isinstance(values, Mapping) else dict(zip(paths, [values], strict=False))
    return _filled(structure, {path: by_name[name] for name, path in paths.items()})


def _filled(structure: Any, values: Mapping[Path, Any], path: Path = ()) -> Any:
    """Return the structure with values for its tensors; lists are tuples, of which `tf.data` makes no tensors."""
    if isinstance(structure, Mapping):
        return {key: _filled(each, values, (*path, key)) for key, each in structure.items()}
    if isinstance(structure, (list, tuple)):
        return tuple(_filled(each, values, (*path, place)) for place, each in enumerate(structure))
    return values[path]

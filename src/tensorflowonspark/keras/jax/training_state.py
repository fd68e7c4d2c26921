"""The state of a training on JAX as files of arrays, for checkpoints.

One file is a zip archive with an entry for each variable, in the order in which the model has them. A variable that is
divided among the workers has an empty entry: each worker writes its own parts, and reads those that it needs. So a
checkpoint can be restored by any number of workers and with any distribution, and no worker ever has a whole one.
"""

import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tensorflowonspark.errors import CheckpointError, SpecError
from tensorflowonspark.keras.archives import open_archive, write_archive
from tensorflowonspark.keras.jax.value_placement import assembled, is_sharded, local_array

_FILE, _VARIABLES = "state.zip", "variables.json"
_PART = re.compile(r"jax-(\d+)((?:-\d+\.\d+)*)")  # the number of a variable, and its part in each dimension


def is_state(state: Any) -> bool:
    """Return whether a state that a program passed is of a model on JAX, and none of TensorFlow."""
    return isinstance(state, JaxState) or (hasattr(state, "stateless_call") and hasattr(state, "jax_state_sync"))


class JaxState:
    """All state of the training of a Keras model, which is built: weights, the optimizer's variables, and seeds.

    The optimizer is built here, if there is one.
    """

    def __init__(self, model: Any) -> None:
        if not model.built:
            raise SpecError("the model is not built yet: give it an Input, or call it once, before its checkpoint")
        self._model = model

    @classmethod
    def of(cls, state: Any) -> "JaxState":
        """Return a state, given that or a model."""
        return state if isinstance(state, JaxState) else cls(state)

    @property
    def _variables(self) -> list[Any]:
        model = self._model
        model.jax_state_sync()  # within an epoch Keras holds the values elsewhere; after it Keras takes the variables'
        optimizer = getattr(model, "optimizer", None)
        if optimizer is not None and not optimizer.built:
            optimizer.build(model.trainable_variables)
        metrics = {id(each) for each in model.metrics_variables}
        own = [each for each in model.variables if id(each) not in metrics]
        variables = [*own, *(optimizer.variables if optimizer is not None else [])]
        return list({id(each): each for each in variables}.values())

    def writer(self, *, copied: bool = False) -> Callable[[str], None]:
        """Return what writes the state to a directory of this machine; if `copied`, as it is now."""
        variables = self._variables
        described = [{"path": each.path, "shape": list(each.shape), "dtype": str(each.dtype)} for each in variables]
        # As bytes, since NumPy's files have no bfloat16.
        values = (_bytes(() if is_sharded(each.value) else local_array(each.value)) for each in variables)
        of_now = [np.array(each) for each in values] if copied else values
        write = partial(np.lib.format.write_array, allow_pickle=False)
        return lambda directory: write_archive(Path(directory, _FILE), _VARIABLES, described, of_now, write)

    @property
    def is_divided(self) -> bool:
        """Whether any variable is divided among the workers."""
        return any(is_sharded(each.value) for each in self._variables)

    def shard_parts(self) -> Iterator[tuple[str, bytes]]:
        """Yield the name and the contents of each part that this worker has of divided variables."""
        for number, each in enumerate(self._variables):
            for shard in each.value.addressable_shards if is_sharded(each.value) else ():
                if not shard.replica_id:  # of several devices with the same part one writes it
                    bounds = [part.indices(size) for part, size in zip(shard.index, each.shape, strict=True)]
                    place = "".join(f"-{start}.{stop}" for start, stop, _ in bounds)
                    yield f"jax-{number}{place}", _bytes(shard.data).tobytes()

    def load_shard_parts(self, names: Sequence[str], read: Callable[[str], bytes]) -> None:
        """Read divided variables, of each the parts that this worker's devices have now.

        `names` are those of all parts. Parts that do not fit the model are a `CheckpointError`.
        """
        parts: dict[int, dict[str, tuple[slice, ...]]] = {}
        for name in names:
            if found := _PART.fullmatch(name):
                bounds = [map(int, each.split(".")) for each in found[2].split("-")[1:]]
                parts.setdefault(int(found[1]), {})[name] = tuple(slice(*each) for each in bounds)
        for number, variable in enumerate(self._variables):
            if number in parts:
                _check_whole(variable, parts[number].values())
                make = partial(_part, variable, parts[number], read)
                variable.assign(assembled(variable.shape, variable.value.sharding, make))

    def read(self, directory: str, source: str) -> None:
        """Read the state from a directory of this machine.

        A damaged file, and values that do not fit the model, are a `CheckpointError` with the checkpoint's path,
        `source`.
        """
        variables = self._variables
        with open_archive(directory, _FILE, source) as archive:
            _check_fit(json.loads(archive.read(_VARIABLES)), variables, source)
            for number, each in enumerate(variables):
                flat = np.lib.format.read_array(io.BytesIO(archive.read(str(number))), allow_pickle=False)
                if flat.size or 0 in each.shape:
                    each.assign(flat.view(each.value.dtype).reshape(each.shape))


def _bytes(value: Any) -> Any:
    return np.ascontiguousarray(value).reshape(-1).view(np.uint8)


def _check_whole(variable: Any, places: Iterable[Sequence[slice]]) -> None:
    """Raise an error if the parts of a variable are not those of one with its shape."""
    sizes = [[each.stop - each.start for each in place] for place in places]
    found = sum(math.prod(each) for each in sizes)
    if found != math.prod(variable.shape) or any(len(each) != len(variable.shape) for each in sizes):
        raise CheckpointError(
            f"the checkpoint does not fit the program's model: it has {found} numbers of {variable.path}, whose shape "
            f"is {tuple(variable.shape)}. Train the model that wrote it, or give another directory"
        )


def _part(
    variable: Any, parts: dict[str, tuple[slice, ...]], read: Callable[[str], bytes], index: tuple[slice, ...]
) -> Any:
    """Return the values of a variable at an index, put together from the parts that overlap with it."""
    wanted = [slice(*each.indices(size)) for each, size in zip(index, variable.shape, strict=True)]
    values = np.empty([each.stop - each.start for each in wanted], variable.value.dtype)
    for name, place in parts.items():
        common = [
            slice(max(mine.start, its.start), min(mine.stop, its.stop)) for mine, its in zip(wanted, place, strict=True)
        ]
        if all(each.start < each.stop for each in common):
            part = np.frombuffer(read(name), values.dtype).reshape([each.stop - each.start for each in place])
            values[_within(common, wanted)] = part[_within(common, place)]
    return values


def _within(places: Sequence[slice], of: Sequence[slice]) -> tuple[slice, ...]:
    return tuple(
        slice(each.start - whole.start, each.stop - whole.start) for each, whole in zip(places, of, strict=True)
    )


def _check_fit(written: list[dict[str, Any]], variables: list[Any], source: str) -> None:
    wanted = [(list(each.shape), str(each.dtype)) for each in variables]
    found = [(each["shape"], each["dtype"]) for each in written]
    if found == wanted:
        return
    first = next((number for number, pair in enumerate(zip(found, wanted, strict=False)) if pair[0] != pair[1]), None)
    differing = (
        f"it has {len(found)} variables, the model {len(wanted)}"
        if first is None
        else f"{written[first]['path']} has {found[first]}, the model's {variables[first].path} has {wanted[first]}"
    )
    raise CheckpointError(
        f"{source} does not fit the program's model: train the one that wrote it, give another directory, or remove "
        f"this one to start from the beginning ({differing})"
    )

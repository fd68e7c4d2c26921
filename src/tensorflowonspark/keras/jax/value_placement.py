"""Values on the devices of several processes: placed without an exchange, and read again.

JAX places a value on the devices of several processes only after all of them have compared theirs, in a collective for
each value. A process that does so alone, as the chief when it saves, waits for ever. Here each process places its part;
`model_methods` compares the models of all workers once, when a training begins.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

import numpy as np

from tensorflowonspark.keras.hooks import setting, wrap
from tensorflowonspark.keras.jax.jax_processes import undistributed
from tensorflowonspark.keras.jax.short import Short
from tensorflowonspark.keras.workers import combine

_is_alone: ContextVar[bool] = ContextVar("is_alone", default=False)  # in `on_this_process`
_is_read: ContextVar[bool] = ContextVar("is_read", default=False)  # in `gathered_when_read`, and not in another thread


def place_without_exchange(module: ModuleType) -> None:
    """Have Keras place values so (called after the import of the ``distribution_lib`` of its backend)."""

    def distribute_tensor(wrapped: Any, _: Any, /, tensor: Any, layout: Any) -> Any:
        if _is_alone.get():
            return tensor
        sharding = getattr(layout, "backend_layout", layout)
        if not _spans_processes(sharding) or _is_traced(tensor) or _spans_processes(tensor):
            return wrapped(tensor, layout)
        return placed(tensor, sharding)

    def distribute_data_input(wrapped: Any, _: Any, /, data: Any, layout: Any, *args: Any, **kwargs: Any) -> Any:
        if data is None:
            return None
        sharding = getattr(layout, "backend_layout", layout)
        if isinstance(data, Short):
            return data.placed(lambda array, of: wrapped(array, of, *args, **kwargs), sharding)
        return wrapped(data, sharding, *args, **kwargs)

    wrap(module, "distribute_tensor", distribute_tensor)
    wrap(module, "distribute_data_input", distribute_data_input)


def _spans_processes(value: Any) -> bool:
    """Return whether an array or a sharding is on devices of other processes too."""
    return not getattr(value, "is_fully_addressable", True)


def _is_traced(tensor: Any) -> bool:
    import jax

    return isinstance(tensor, jax.core.Tracer)


def placed(value: Any, sharding: Any) -> Any:
    """Return a value, which all processes have, on the devices of a sharding."""
    array = np.asarray(value)
    return assembled(array.shape, sharding, lambda index: array[index])


def assembled(shape: tuple[int, ...], sharding: Any, part: Callable[[tuple[slice, ...]], Any]) -> Any:
    """Return an array on the devices of a sharding, of NumPy's arrays that `part` returns for an index.

    In memory of JAX's own: a step can't put its results into NumPy's, and a view would keep the whole array.
    """
    import jax

    places = sharding.addressable_devices_indices_map(shape).items()
    parts = [jax.numpy.array(jax.device_put(part(index), device), copy=True) for device, index in places]
    return jax.make_array_from_single_device_arrays(shape, sharding, parts)


def is_read_whole() -> bool:
    """Return whether divided variables are whole where they are read, as in `gathered_when_read`."""
    return _is_read.get()


def is_sharded(value: Any) -> bool:
    """Return whether no process has the whole of an array."""
    return _spans_processes(value) and not value.is_fully_replicated


def local_array(value: Any) -> Any:
    """Return an array that each process has as one of this process alone, without a copy."""
    return value.addressable_data(0) if _spans_processes(value) else value


def gathered(value: Any) -> Any:
    """Return the whole of an array as a NumPy array; if it is divided among processes, all of them must call it."""
    if not is_sharded(value):
        return np.asarray(local_array(value))
    from jax.experimental.multihost_utils import process_allgather

    return np.asarray(process_allgather(value, tiled=True))


def whole_values(variables: Sequence[Any]) -> list[Any] | None:
    """Return the values of variables if any is divided among the processes, all of which must call it then."""
    return [gathered(each.value) for each in variables] if any(is_sharded(each.value) for each in variables) else None


@contextmanager
def gathered_when_read(variables: Sequence[Any], call: str, *, reads: bool) -> Iterator[None]:
    """Have a variable that is divided among the processes be whole where it is read, and only as long.

    For a block that one process runs, which `reads`; all others wait at its end, and hand in their parts meanwhile. So
    no process ever has more than one variable as a whole. `call` is the program's, for errors.
    """
    import jax
    import keras

    divided = [each for each in variables if is_sharded(each.value)]
    if not reads:
        yield
        while divided and (number := combine(call, -1, max)) < len(divided):
            gathered(divided[number].value)
        return
    numbers = {id(each): number for number, each in enumerate(divided)}
    of_process = keras.Variable.value

    def value(variable: Any) -> Any:
        found = of_process.fget(variable)
        if id(variable) not in numbers or not _is_read.get() or _is_traced(found) or not is_sharded(found):
            return found
        combine(call, numbers[id(variable)], max)
        return jax.device_put(gathered(found), jax.local_devices()[0])

    keras.Variable.value = property(value)
    try:
        with setting(_is_read, True):
            yield
    finally:
        keras.Variable.value = of_process
        if divided:
            combine(call, len(divided), max)


@contextmanager
def on_this_process(variables: Sequence[Any], values: Sequence[Any] | None = None) -> Iterator[None]:
    """Have the variables be of this process alone, and Keras distribute nothing, for the duration of a block.

    What the block assigns to them is dropped. By default they keep their values, also those that are divided among the
    processes; else `values` are whole ones.
    """
    kept = [each.value for each in variables]
    try:
        with undistributed(), setting(_is_alone, True):
            for variable, value in zip(variables, kept if values is None else values, strict=True):
                if not is_sharded(value):
                    variable.assign(_copied(value))
            yield
    finally:
        for variable, value in zip(variables, kept, strict=True):
            variable.assign(value)


def _copied(value: Any) -> Any:
    """Return a copy on this process's first device, since a compiled step overwrites what it is given."""
    import jax

    return jax.device_put(jax.numpy.array(local_array(value), copy=True), jax.local_devices()[0])

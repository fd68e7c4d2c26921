"""Values on the devices of several processes: placed without an exchange, and read again.

JAX places a value on the devices of several processes only after all of them have compared theirs, in a collective for
each value. A process that does so alone, as the chief when it saves, waits for ever. Here each process places its part;
`training` compares the models of all workers once, when a training begins.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from tensorflowonspark.keras.hooks import wrap
from tensorflowonspark.keras.jax.cluster import current
from tensorflowonspark.keras.shards import is_shard


def place_without_exchange(module: ModuleType) -> None:
    """Have Keras place values so (called after the import of the ``distribution_lib`` of its backend)."""

    def distribute_tensor(wrapped: Any, _: Any, /, tensor: Any, layout: Any) -> Any:
        sharding = getattr(layout, "backend_layout", layout)
        if not _spans_processes(sharding) or _is_traced(tensor) or _spans_processes(tensor):
            return wrapped(tensor, layout)
        return placed(tensor, sharding)

    def distribute_data_input(wrapped: Any, _: Any, /, *args: Any, **kwargs: Any) -> Any:
        # A batch for `train_on_batch` has None in place of weights that are not given.
        return wrapped(*args, **kwargs) if (args or list(kwargs.values()))[0] is not None else None

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
    import jax

    array = np.asarray(value)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


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


def assign(variable: Any, value: Any) -> None:
    """Assign a value, which all processes have, to a variable of Keras."""
    old = variable.value
    variable.assign(placed(np.asarray(value), old.sharding) if _spans_processes(old) else value)


@contextmanager
def on_this_process(
    variables: Sequence[Any], values: Sequence[Any] | None = None, *, copied: bool = False
) -> Iterator[None]:
    """Have the variables be of this process alone, and Keras distribute nothing, for the duration of a block.

    Parameters
    ----------
    variables : sequence of keras.Variable
        The variables; what the block assigns to them is dropped.
    values : sequence of numpy.ndarray, optional
        Their values, if they are divided among the processes; by default their own.
    copied : bool
        Whether the block may overwrite the memory of the values, as a compiled step does with what is donated to it.
    """
    from keras.src.backend.common import global_state

    kept = [(each, each._value, each._layout) for each in variables]
    distribution = global_state.get_global_attribute("distribution")
    global_state.set_global_attribute("distribution", None)
    try:
        for number, (variable, value, _) in enumerate(kept):
            variable._layout = None
            variable._value = _local(value if values is None else values[number], copied and values is None)
        yield
    finally:
        for variable, value, layout in kept:
            variable._value, variable._layout = value, layout
        global_state.set_global_attribute("distribution", distribution)


def _local(value: Any, copied: bool) -> Any:
    import jax

    local = local_array(value)
    return jax.device_put(jax.numpy.array(local, copy=True) if copied else local, jax.local_devices()[0])


def keep_shares(module: ModuleType) -> None:
    """Have a distribution leave the rows of a feed as they are (called after the import of ``distribution_lib``).

    Keras divides a dataset among the processes unless ``auto_shard_dataset=False``. Those of a feed are already one
    worker's share.
    """

    def distribute_dataset(wrapped: Any, _distribution: Any, /, dataset: Any) -> Any:
        return dataset if current() is not None and _is_share(dataset) else wrapped(dataset)

    wrap(module, "Distribution.distribute_dataset", distribute_dataset)


def _is_share(dataset: Any) -> bool:
    from tensorflowonspark.keras.provenance import Generator, sources

    if is_shard(dataset):
        return True
    origins = sources(dataset)
    return any(each.reads_feed or (isinstance(each, Generator) and each.test_read()) for each in origins)

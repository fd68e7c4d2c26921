"""Batches with fewer real rows than JAX needs, and steps on the real ones alone.

All processes give JAX parts of one size, which some fill up with rows that must not count. A step takes them out first:
it is compiled once more for the number of real rows, as that of one process is for a short batch, and computes what one
process does with these rows. So they are in no loss, metric or statistic, and in no shape for which numbers are drawn.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

from tensorflowonspark.keras.hooks import replacing, wrap

STEPS = ("train_step", "test_step")  # methods of models


class Short:
    """An array of a batch that has fewer real rows, in the place of the array.

    `real` masks the real rows; `rows` is the number of those of all processes.
    """

    def __init__(self, array: Any, real: Any, rows: int) -> None:
        self.array, self.real, self.rows = array, real, rows

    @property
    def shape(self) -> Any:
        """The shape of the array."""
        return self.array.shape

    @property
    def dtype(self) -> Any:
        """The dtype of the array."""
        return self.array.dtype

    def placed(self, place: Callable[[Any, Any], Any], sharding: Any) -> "Short":
        """Return it on the devices of all processes, where `place` puts an array, of this sharding."""
        import jax

        _register()
        of_rows = jax.sharding.PartitionSpec(*sharding.spec[: self.real.ndim])
        mask = place(self.real, jax.sharding.NamedSharding(sharding.mesh, of_rows))
        return Short(place(self.array, sharding), mask, self.rows)


@cache
def _register() -> None:
    import jax

    def made(rows: int, children: Any) -> Short:
        array, real = children
        return Short(array, real, rows)

    jax.tree_util.register_pytree_node(Short, lambda each: ((each.array, each.real), each.rows), made)


def real_part(data: Any) -> Any:
    """Return the real rows of a batch of a step."""
    import jax

    leaves = jax.tree.leaves(data, is_leaf=_is_short)
    short = next(filter(_is_short, leaves), None)
    if short is None:
        return data
    places = jax.numpy.nonzero(_constrained(short.real, whole=True), size=short.rows)[0]

    def real(each: Any) -> Any:
        array = each.array if _is_short(each) else each
        return _constrained(jax.numpy.take(array, places, axis=0), whole=False)

    return jax.tree.map(real, data, is_leaf=_is_short)


def _is_short(each: Any) -> bool:
    return isinstance(each, Short)


def _constrained(array: Any, *, whole: bool) -> Any:
    """Have a traced array be whole on each device, or be divided among them as batches are, also if not evenly."""
    import jax
    import keras

    if not isinstance(array, jax.core.Tracer):
        return array
    sharding = keras.distribution.distribution().get_data_layout(array.shape).backend_layout
    spec = jax.sharding.PartitionSpec() if whole else sharding.spec
    return jax.lax.with_sharding_constraint(array, jax.sharding.NamedSharding(sharding.mesh, spec))


def take_real_rows(keras: Any) -> None:
    """Have the steps of Keras's models take the real rows of batches (called after its import)."""
    for name in STEPS:
        wrap(keras, f"Model.{name}", lambda wrapped, _, /, state, data: wrapped(state, real_part(data)))


def own_step(model: Any, name: str) -> AbstractContextManager[None]:
    """Have a model's own ``train_step`` or ``test_step`` take the real rows of batches, for the duration of a block."""
    own = getattr(model, name)
    return replacing(model, name, lambda state, data: own(state, real_part(data)))

"""What ``ctx.layout`` sets: how variables and batches are divided among the devices of all workers.

JAX computes the same whatever the division: it adds the exchange that each operation needs, of weights or of what
layers compute, whichever is smaller by its estimate. So a rule of shapes is enough. Along its largest dimension a table
is divided by its rows, and of two dense layers with a wide one between them the first by its columns and the second by
its rows, as Megatron does.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.hooks import keras_backend
from tensorflowonspark.keras.jax.jax_processes import join_distribution

KINDS = ("data", "fsdp", "model")
_BATCH, _MODEL = "batch", "model"  # axes of a mesh
_INSTEAD = {
    "data": "use ctx.strategy()",
    "fsdp": "use tfos.keras.ShardedEmbedding for a table, and for other variables JAX",
    "model": "use ctx.init_dtensor() or tfos.keras.Placed",
}


def set_layout(kind: str, min_size: int) -> Any:
    """Make a distribution of a kind the one of this program, and return it: the same for equal arguments.

    Raises SpecError for arguments that can't be right, on another backend than JAX, or if there are variables already.
    """
    if kind not in KINDS:
        raise SpecError(f"ctx.layout({kind!r}): expected one of {', '.join(map(repr, KINDS))}")
    if not isinstance(min_size, int) or isinstance(min_size, bool) or min_size < 0:
        raise SpecError(f"min_size={min_size!r}: expected a number of elements from 0 on")
    import keras  # noqa: F401 - its own configuration file may name the backend

    if (backend := keras_backend()) != "jax":
        raise SpecError(
            f"ctx.layout({kind!r}) is for Keras on JAX, and this program's backend is {backend!r}: set "
            f'env={{"KERAS_BACKEND": "jax"}} on the cluster, or {_INSTEAD[kind]}'
        )
    return join_distribution((kind, min_size), f"ctx.layout({kind!r})", lambda: _distribution(kind, min_size))


def _distribution(kind: str, min_size: int) -> Any:
    import jax
    import keras

    module = keras.distribution
    of_worker = Counter(each.process_index for each in jax.devices())
    if len(set(of_worker.values())) > 1:
        found = ", ".join(f"worker {number}: {count}" for number, count in sorted(of_worker.items()))
        raise SpecError(
            f"ctx.layout({kind!r}): the workers have different numbers of devices ({found}), and each step divides a "
            "batch evenly among all of them: give all workers as many GPUs"
        )
    workers, devices = len(of_worker), of_worker[0]
    if kind == "data":
        return module.DataParallel(auto_shard_dataset=False)
    if kind == "fsdp":
        mesh, axis = module.DeviceMesh((workers * devices,), (_BATCH,)), _BATCH
    elif workers > 1 and devices == 1:
        raise SpecError(
            "ctx.layout('model') divides variables among the devices of each worker, and each has one: use "
            "ctx.layout('fsdp'), which divides them among all workers"
        )
    else:
        mesh, axis = module.DeviceMesh((workers, devices), (_BATCH, _MODEL)), _MODEL
    parts = mesh.shape[mesh.axis_names.index(axis)]

    class Divided(module.ModelParallel):  # type: ignore[name-defined]
        """Divides variables by their shapes; Keras gives an optimizer's slots the layouts of their variables."""

        def get_variable_layout(self, variable: Any) -> Any:
            place = divided_dimension(variable.shape, parts, min_size)
            if place is None:
                return super().get_variable_layout(variable)
            axes = [axis if number == place else None for number in range(len(variable.shape))]
            return module.TensorLayout(axes, self.device_mesh)

    return Divided(layout_map=module.LayoutMap(mesh), auto_shard_dataset=False)


def divided_dimension(shape: Sequence[int], parts: int, min_size: int) -> int | None:
    """Return the dimension along which a variable is divided: the last of the largest that `parts` divides.

    None stands for a variable that stays whole: it has fewer elements than `min_size`, or no such dimension.

    Examples
    --------
    >>> divided_dimension((50_000, 64), 2, 0), divided_dimension((64, 64), 2, 0), divided_dimension((9, 6), 2, 0)
    (0, 1, 1)
    >>> divided_dimension((64, 64), 2, 65_536), divided_dimension((9, 7), 2, 0), divided_dimension((), 2, 0)
    (None, None, None)
    """
    fitting = [(size, place) for place, size in enumerate(shape) if size and size % parts == 0]
    return max(fitting)[1] if fitting and parts > 1 and math.prod(shape) >= min_size else None

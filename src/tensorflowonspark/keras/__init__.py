"""Layers and callbacks for Keras on several nodes, and repairs of Keras 3 under ``MultiWorkerMirroredStrategy``.

Public names, imported at their first use:

- `ShardedEmbedding` (`embedding`): a layer whose table is divided among the workers.
- `LocalSGD`, `DiLoCo` (`local_sgd`, `round_state`): callbacks that average the weights of all workers in rounds.
- `all_mean` (`averages`): a mean over the rows of all workers, for layers of one's own.
- `Placed` (`placement`, `devices`): a layer on another node, with its optimizer's variables beside it.

The repairs are made before the user's function runs. `hooks` makes each when Keras, or the module that it concerns, has
been imported, in the class that defines the function:

- `startup`: a strategy that is made too late is an error with what to move; several may follow each other.
- `step_functions`, `step_begin`, `worker_step`: the functions that ``fit``, ``evaluate`` and ``predict`` call for a
  step, which is that of one process on each of several workers, and the message with which it begins.
- `fitting`, `callbacks`: ``fit`` with statistics, files and restored state that all workers share; ``predict``, which
  waits for no other worker; class weights beside sample weights.
- `pass_steps`: the steps of a pass that Keras begins: those to skip, and their number as it becomes known.
- `gradients`, `row_operations`, `all_rows`: gradients that a tape returns are those of all workers' rows, by what a
  loss is over its rows; what is computed of sums and means over rows is that of all workers.
- `layer_rows`, `batch_statistics`: what layers compute of a batch as a whole, and keep of it, is that of all workers.
- `steps`, `optimizers`: gradients are summed outside of the graph that XLA compiles, and first in loops of one's own.
- `metrics`, `metric_sums`, `trackers`, `losses`: what is reported is that of all workers' real rows.
- `randomness`: each worker draws numbers of its own.
- `tensorflow_collectives`: reductions and broadcasts over the workers; a strategy's own communication options hold for
  gradients.
- `shards`, `provenance`: a dataset that holds one worker's share is not divided again.
- `feed_tracking`, `row_count`: a warning if fewer rows reach the steps of ``fit`` than a feed returned.
- `adapting_together`, `preprocessing`: preprocessing layers adapt to the rows of all workers.
- `resuming_callback`: the callback of a checkpoint.
- `saving`: models are saved outside of a strategy's scope, and exported as they predict.
- `exchanging_callbacks`: ``fit`` with torch is refused, unless a callback exchanges weights, or the program tries it.
- `jax`: what takes the place of all this if JAX is the backend of Keras 3.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorflowonspark.keras.averages import all_mean as all_mean
    from tensorflowonspark.keras.embedding import ShardedEmbedding as ShardedEmbedding
    from tensorflowonspark.keras.local_sgd import DiLoCo as DiLoCo
    from tensorflowonspark.keras.local_sgd import LocalSGD as LocalSGD
    from tensorflowonspark.keras.placement import Placed as Placed

__all__ = ["DiLoCo", "LocalSGD", "Placed", "ShardedEmbedding", "all_mean"]

_MODULES = {
    "DiLoCo": "local_sgd",
    "LocalSGD": "local_sgd",
    "Placed": "placement",
    "ShardedEmbedding": "embedding",
    "all_mean": "averages",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)

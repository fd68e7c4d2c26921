"""Random numbers of Keras on several workers: each draws numbers of its own.

All workers make their layers with one seed, or take one by ``set_random_seed``, and would draw the same mask of a
Dropout for their different rows. A draw takes a seed from the state of a ``SeedGenerator``, which stays equal on all
workers, and to which each adds its number. So worker 0 draws what one process draws, and a training that resumes from a
checkpoint draws what it would have drawn. Numbers that a program draws with a seed of its own, a number, are equal.
"""

from types import ModuleType
from typing import Any

from tensorflowonspark.keras.hooks import wrap
from tensorflowonspark.keras.workers import are_several, roles

_STEP = 1_000_003  # between the seeds of two workers


def draw_own_numbers(keras: ModuleType) -> None:
    """Have each worker draw numbers of its own (called after the import of Keras)."""

    def draw(wrapped: Any, _generator: Any, /, *args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        seed = wrapped(*args, **kwargs)
        # Eagerly layers are made, with weights that all workers have; steps and functions of datasets are graphs.
        if not are_several() or (tf.executing_eagerly() and not _in_step()):
            return seed
        role, workers = roles()
        return seed + tf.constant([_STEP * workers.index(role), 0], seed.dtype)

    wrap(keras, "random.SeedGenerator.next", draw)


def _in_step() -> bool:
    from tensorflowonspark.keras.worker_step import current_step

    return current_step() is not None

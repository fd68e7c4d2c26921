"""What Keras 3 by itself can't do on several workers: two of them learn what one process learns of the same batches."""

import numpy as np
import pytest

import tensorflowonspark as tfos

_ROWS, _BATCH = 96, 16  # six steps
_CLASS_WEIGHT = {0: 0.5, 1: 3.0}


def values():
    """Return features, labels of two classes, and weights of rows."""
    x = np.sin(np.arange(_ROWS * 3, dtype="f4") ** 2).reshape(_ROWS, 3)
    return x, (x.sum(axis=1) > 0).astype("f4"), (np.arange(_ROWS, dtype="f4") % 4)


class Share:
    """What one of several workers does, or one process alone."""

    def __init__(self, index, workers):
        import tensorflow as tf

        self.index, self.workers = index, workers
        self.strategy = tf.distribute.MultiWorkerMirroredStrategy() if workers > 1 else tf.distribute.get_strategy()

    def rows(self, *arrays):
        """Return this worker's part of each batch."""
        size = _BATCH // self.workers
        return [
            np.concatenate([each[at : at + _BATCH][self.index * size :][:size] for at in range(0, len(each), _BATCH)])
            for each in arrays
        ]

    def data(self, *arrays):
        """Return a data set of this worker's part of each batch."""
        import tensorflow as tf

        from tensorflowonspark.keras.shards import mark_shard

        dataset = tf.data.Dataset.from_tensor_slices(tuple(self.rows(*arrays))).batch(_BATCH // self.workers)
        return mark_shard(dataset, _BATCH // self.workers) if self.workers > 1 else dataset

    def model(self, optimizer="sgd", *more, loss="mse", **settings):
        """Return a compiled model."""
        import keras

        keras.utils.set_random_seed(1)
        with self.strategy.scope():
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "tanh"), *more, keras.layers.Dense(1)])
            optimizer = optimizer() if callable(optimizer) else optimizer
            model.compile(optimizer, loss, weighted_metrics=["mae"], **settings)
        return model

    def fitted(self, model, *arrays, **settings):
        """Return what a model has learned, and what was shown of it."""
        history = model.fit(self.data(*(arrays or values())), epochs=2, verbose=0, **settings).history
        return {
            "weights": [np.asarray(each.numpy()) for each in model.weights],
            **{name: np.asarray(each) for name, each in history.items()},
        }


def optimizers():
    """Return settings of optimizers by name."""
    import keras

    known = keras.optimizers
    plain = {
        name: getattr(known, name)
        for name in dir(known)
        if isinstance(getattr(known, name), type)
        and issubclass(getattr(known, name), known.Optimizer)
        and name not in ("Optimizer", "LossScaleOptimizer", "MultiOptimizer", "Ftrl")
    }
    settings = {
        "clipnorm": {"clipnorm": 0.1},
        "clipvalue": {"clipvalue": 0.05},
        "global_clipnorm": {"global_clipnorm": 0.1},
        "weight_decay": {"weight_decay": 0.1},
        "loss_scale_factor": {"loss_scale_factor": 128.0},
        "accumulation": {"gradient_accumulation_steps": 3},
        "accumulation, uneven": {"gradient_accumulation_steps": 5},
        "accumulation and clipnorm": {"gradient_accumulation_steps": 2, "clipnorm": 0.1},
        "ema": {"use_ema": True},
        "ema, overwriting": {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2},
        "ema and accumulation": {
            "use_ema": True,
            "ema_momentum": 0.5,
            "ema_overwrite_frequency": 2,
            "gradient_accumulation_steps": 2,
        },
    }
    made = {name: (lambda kind=kind: kind(0.05)) for name, kind in plain.items()}
    for name, each in settings.items():
        made[f"Adam, {name}"] = lambda each=each: known.Adam(0.05, **each)
    made["SGD, accumulation"] = lambda: known.SGD(0.05, momentum=0.9, gradient_accumulation_steps=2)
    made["Nadam, accumulation"] = lambda: known.Nadam(0.05, gradient_accumulation_steps=2)
    made["LossScale"] = lambda: known.LossScaleOptimizer(known.Adam(0.05), dynamic_growth_steps=2)
    made["LossScale, accumulation"] = lambda: known.LossScaleOptimizer(known.Adam(0.05, gradient_accumulation_steps=2))
    return made


def trained(share):
    """Yield what each optimizer learns."""
    for name, make in optimizers().items():
        yield name, lambda make=make: share.fitted(share.model(make))
    # One worker alone has a gradient that is not finite: all leave out the step.
    x, y, weights = values()
    x = x.copy()
    x[20] = 1e38
    import keras

    scaled = lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05))  # noqa: E731
    yield "LossScale, not finite", lambda: {"weights": share.fitted(share.model(scaled), x, y, weights)["weights"]}
    accumulating = optimizers()["Adam, accumulation"]
    yield "in several steps", lambda: share.fitted(share.model(accumulating, steps_per_execution=2))
    yield "eagerly", lambda: share.fitted(share.model(accumulating, run_eagerly=True))


def outcomes(cases):
    """Return what each case gives; or what it raises."""
    import traceback

    found = {}
    for name, case in cases:
        try:
            found[name] = case()
        except Exception:
            found[name] = traceback.format_exc()
    return found

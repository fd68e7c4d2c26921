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
        return mark_shard(dataset) if self.workers > 1 else dataset

    def model(self, optimizer, outputs=1, kind=None, **settings):
        """Return a compiled model."""
        import keras

        keras.utils.set_random_seed(1)
        with self.strategy.scope():
            layers = [keras.Input((3,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(outputs)]
            model = (kind or keras.Sequential)(layers)
            optimizer = optimizer() if callable(optimizer) else optimizer
            model.compile(optimizer, "mse", weighted_metrics=["mae"], **settings)
            # Else Keras builds it in the first step of one process, whose graph then does so in every step.
            model.optimizer.build(model.trainable_variables)
        return model

    def fitted(self, model, *arrays, **settings):
        """Return what a model has learned, and what was shown of it."""
        history = model.fit(self.data(*(arrays or values())), epochs=2, verbose=0, **settings).history
        return {
            "weights": [np.asarray(each.numpy()) for each in model.weights],
            **{name: np.asarray(each) for name, each in history.items()},
        }


def optimizers():
    """Return optimizers whose options meet, by name; each option by itself is in the table of Keras."""
    import keras

    known = keras.optimizers
    averaged = {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2}
    settings = {
        "accumulation": {"gradient_accumulation_steps": 3},
        "accumulation, uneven": {"gradient_accumulation_steps": 5},
        "accumulation and clipnorm": {"gradient_accumulation_steps": 2, "clipnorm": 0.1},
        "ema, accumulation and clipnorm": {"gradient_accumulation_steps": 2, "clipnorm": 0.1, **averaged},
    }
    made = {f"Adam, {name}": lambda each=each: known.Adam(0.05, **each) for name, each in settings.items()}
    made["Nadam, accumulation"] = lambda: known.Nadam(0.05, gradient_accumulation_steps=2)
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


def weighted(share):
    """Yield what is learned with class weights that the table of Keras has not; one process is given the products."""
    x, y, weights = values()
    # Rows that fill up: no batch of the second worker is without them.
    filled = np.where(np.arange(_ROWS) % _BATCH < 11, np.float32(1), np.float32(-0.0))

    def beside_padding():
        model = share.model("adam")
        if share.workers > 1:
            return {"weights": share.fitted(model, x, y, filled, class_weight=_CLASS_WEIGHT)["weights"]}
        by_class = np.vectorize(_CLASS_WEIGHT.get)(y.astype(int)).astype("f4")
        return {"weights": share.fitted(model, x, y, filled * by_class)["weights"]}

    yield "class weights beside padding", beside_padding

    def of_classes(labels, by_row):
        model = share.model("adam", outputs=labels.shape[1])
        if share.workers > 1:
            return share.fitted(model, x, labels, by_row, class_weight={0: 2, 1: 5})
        return share.fitted(model, x, labels, by_row * np.where(y > 0, 5, 2).astype("f4"))

    yield "class weights, one-hot", lambda: of_classes(np.eye(2, dtype="f4")[y.astype(int)], weights)
    yield "class weights, a column", lambda: of_classes(y[:, None], weights)


def compiled(share):
    """Yield what XLA makes of models."""
    import keras

    x, y, weights = values()
    accumulating = optimizers()["Adam, accumulation"]

    def all_weights(model):
        return [np.asarray(each.numpy()) for each in model.weights]

    def everything(**settings):
        model = share.model(accumulating, jit_compile=True, **settings)
        result = share.fitted(model, validation_data=share.data(x, y, weights))
        result["evaluated"] = np.asarray(model.evaluate(share.data(x, y, weights), verbose=0))
        result["predicted"] = model.predict(x, batch_size=_BATCH, verbose=0)
        first = share.rows(x[:_BATCH], y[:_BATCH], weights[:_BATCH])
        model.train_on_batch(*first)
        model.test_on_batch(*first)
        assert len(model.predict_on_batch(first[0])) == len(first[0])
        return {**result, "weights": all_weights(model)}

    yield "compiled", everything
    yield "compiled, in several steps", lambda: everything(steps_per_execution=4)

    def several_outputs():
        """Masks, losses of layers, and a loss for each output, all of which Keras keeps beside its results."""
        keras.utils.set_random_seed(1)
        with share.strategy.scope():
            words = keras.Input((5,), dtype="int32")
            hidden = keras.layers.Embedding(9, 4, mask_zero=True)(words)
            each = keras.layers.Dense(1, name="each")(hidden)
            last = keras.layers.LSTM(3, kernel_regularizer="l2")(hidden)
            total = keras.layers.Dense(1, name="total", activity_regularizer="l2")(last)
            model = keras.Model(words, {"each": each, "total": total})
            metrics = {"each": ["mae"], "total": ["mse"]}
            model.compile("sgd", {"each": "mse", "total": "mae"}, metrics=metrics, jit_compile=True)
        numbers = (1 + np.arange(_ROWS * 5) ** 2 % 8).reshape(_ROWS, 5).astype("i4")
        numbers[:, 3:] = 0  # masked: as many in each row, since Keras divides by their number in a replica's rows
        y = {"each": np.sin(numbers[..., None].astype("f4")), "total": numbers.sum(axis=1, keepdims=True).astype("f4")}
        dataset = share.data(numbers, *y.values()).map(lambda x, *labels: (x, dict(zip(y, labels, strict=True))))
        history = model.fit(dataset, epochs=2, verbose=0, validation_data=dataset).history
        return {"weights": all_weights(model), **history}

    yield "compiled, several outputs", several_outputs

    class Own(keras.Sequential):
        def train_step(self, data):
            return super().train_step(data)

    yield "compiled, by way of an own step", lambda: share.fitted(share.model("sgd", kind=Own, jit_compile=True))


GROUPS = trained, weighted, compiled
ESSENTIAL = (
    "Adam, ema, accumulation and clipnorm",
    "LossScale, not finite",
    "class weights beside padding",
    "compiled",
)


def outcomes(share, essential):
    """Return what each case gives; or what it raises."""
    import traceback

    found = {}
    for name, case in (each for group in GROUPS for each in group(share)):
        if (name in ESSENTIAL) == essential:
            try:
                found[name] = case()
            except Exception:
                found[name] = traceback.format_exc()
    return found


def program(args, ctx):
    return outcomes(Share(ctx.index, ctx.num_workers), args)


def assert_same(one, two, name):
    assert type(one) is type(two), f"{name}: {one} and {two}"
    if isinstance(one, dict):
        assert one.keys() == two.keys(), name
        for key, each in one.items():
            assert_same(each, two[key], f"{name}: {key}")
    elif isinstance(one, list):
        for number, (each, other) in enumerate(zip(one, two, strict=True)):
            assert_same(each, other, f"{name}[{number}]")
    elif isinstance(one, str):
        pytest.fail(f"{name}: {one}")
    else:
        np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-5, err_msg=name)


def two_workers_and_one_process(spark, essential):
    results = tfos.run(spark, program, essential, num_workers=2)
    assert_same(results["worker:0"], results["worker:1"], "workers")
    assert_same(results["worker:0"], outcomes(Share(0, 1), essential), "two workers and one process")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.masters("local")
def test_what_keras_can_not_do_by_itself(spark):
    two_workers_and_one_process(spark, essential=True)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.masters("local")
def test_all_the_rest(spark):
    two_workers_and_one_process(spark, essential=False)

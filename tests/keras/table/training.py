"""What most cells do: train a small model, and return what came of it.

Under a ParameterServerStrategy, where Keras 3 has no ``fit``, a loop of one's own does it: one step after the other.
"""

import keras
import numpy as np


def linear(units=1, **options):
    """Return a model of two small layers."""
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(units)])


def weights_of(model):
    return [np.asarray(keras.ops.convert_to_numpy(each)) for each in model.weights]


def trained(column, build=linear, optimizer=None, loss="mse", *, data=None, epochs=2, callbacks=None, **compiled):
    """Fit a model of the even rows (or `data`); return its weights and history."""
    with column.scope():
        model = build()
        optimizer = optimizer() if callable(optimizer) else optimizer or keras.optimizers.SGD(0.05)
        model.compile(optimizer, loss, **compiled)
    data = column.even() if data is None else data
    if column.coordinator and not callbacks and not compiled:
        return _coordinated(column, model, optimizer, loss, data, epochs)
    history = model.fit(data, epochs=epochs, verbose=0, callbacks=callbacks)
    return {"weights": weights_of(model), "history": history.history}


def mapped(column, change):
    """Return the even rows with other labels or features: ``change(x, y)`` gives both."""
    return column.even().map(lambda x, y, w: (*change(x, y), w))


class FunctionLoss(keras.losses.Loss):
    """A loss made of a function."""

    def __init__(self, function):
        super().__init__()
        self._function = function

    def call(self, truth, prediction):
        return self._function(truth, prediction)


def _coordinated(column, model, optimizer, loss, data, epochs):
    with column.scope():
        optimizer = keras.optimizers.get(optimizer)
    compare = loss if isinstance(loss, keras.losses.Loss) or loss is None else keras.losses.get(loss)
    if compare is not None and not isinstance(compare, keras.losses.Loss):
        compare = FunctionLoss(compare)

    def step(x, y, weight):
        import tensorflow as tf

        with tf.GradientTape() as tape:
            predicted = model(x, training=True)
            if compare is None:
                value = model.compute_loss(x, y, predicted, weight)
            else:
                value = compare(y, predicted, sample_weight=weight) + sum(model.losses)
                value = keras.ops.mean(value)
            scaled = optimizer.scale_loss(value)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(scaled, variables), variables, strict=True))
        return value, keras.ops.shape(weight)[0]

    with column.scope():
        if not model.built:
            model.build((None, 4))
        optimizer.build(model.trainable_variables)
    history = []
    for _ in range(epochs):
        found = in_steps(column, step, data)
        history.append(sum(value * size for value, size in found) / sum(size for _, size in found))
    return {"weights": weights_of(model), "history": {"loss": history}}


def in_steps(column, step, data, steps=None):
    """Take so many steps on a worker, or all until its rows are at an end; return what each gave."""
    import tensorflow as tf

    batches = iter(column.coordinator.create_per_worker_dataset(data))

    @tf.function
    def one(iterator):
        return column.strategy.run(step, args=next(iterator))

    found = []
    while len(found) != steps:
        result = column.coordinator.schedule(one, args=(batches,))
        try:
            column.coordinator.join()
        except tf.errors.OutOfRangeError:
            break
        found.append(result.fetch())
    return found

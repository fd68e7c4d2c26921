"""What most cells do: train a small model, and return what came of it.

Under a ParameterServerStrategy, where Keras 3 has no ``fit``, a loop of one's own does it: one step after the other.
"""

import keras
import numpy as np
import tensorflow as tf


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
        return _coordinated(column, model, data, epochs)
    history = model.fit(data, epochs=epochs, verbose=0, callbacks=callbacks)
    return {"weights": weights_of(model), "history": history.history}


def mapped(column, change):
    """Return the even rows with other labels or features: ``change(x, y)`` gives both."""
    return column.even().map(lambda x, y, w: (*change(x, y), w))


def _coordinated(column, model, data, epochs):
    # A step that finds no more rows would still do what it does without rows, as weights decay: no such step is taken.
    steps = len(in_steps(column, lambda *row: tf.size(row[-1]), data))
    optimizer = model.optimizer

    def step(x, y, weight):
        with tf.GradientTape() as tape:
            value = model.compute_loss(x, y, model(x, training=True), weight)
            scaled = optimizer.scale_loss(value)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(scaled, variables), variables, strict=True))
        return value, keras.ops.shape(weight)[0]

    with column.scope():
        if not getattr(model, "inputs", None):  # it has no variables before its first call
            model(np.zeros((1, 4), "f4"))
        optimizer.build(model.trainable_variables)
    history = []
    for _ in range(epochs):
        found = in_steps(column, step, data, steps)
        history.append(sum(value * size for value, size in found) / sum(size for _, size in found))
    with column.scope():
        optimizer.finalize_variable_values(model.trainable_variables)
    return {"weights": weights_of(model), "history": {"loss": history}}


def in_steps(column, step, data, steps=None):
    """Take so many steps on a worker, or all until its rows are at an end; return what each gave."""
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

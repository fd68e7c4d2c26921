"""The models that the feed benchmark trains, and the same rows as numpy arrays in memory."""

import time

import numpy as np

SHAPES = {"small": (784,), "middle": (784,), "large": (28, 28, 1)}
TITLES = {
    "small": "small: Dense 10",
    "middle": "middle: Dense 512, Dense 512, Dense 10",
    "large": "large: two convolutions, Dense 10",
}


def layers(name):
    """Return a model's layers."""
    import keras

    if name == "small":
        return [keras.layers.Flatten(), keras.layers.Dense(10)]
    if name == "middle":
        dense = [keras.layers.Dense(512, activation="relu") for _ in range(2)]
        return [*dense, keras.layers.Dense(10)]
    found = []
    for filters in (16, 32):
        found += [keras.layers.Conv2D(filters, 3, activation="relu"), keras.layers.MaxPooling2D()]
    return [*found, keras.layers.Flatten(), keras.layers.Dense(10)]


def fit_seconds(name, dataset, epochs):
    """Train a model; return the seconds of each epoch."""
    import keras

    times = []
    stopwatch = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: times.append(time.monotonic()),
        on_epoch_end=lambda epoch, logs: times.append(time.monotonic()),
    )
    model = keras.Sequential([keras.Input(SHAPES[name]), *layers(name)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss)
    model.fit(dataset, epochs=epochs, verbose=0, callbacks=[stopwatch])
    return [end - begin for begin, end in zip(times[::2], times[1::2], strict=True)]


def arrays(rows):
    """Return the rows of the kind ``floats`` as arrays of features and labels."""
    x = np.resize(np.arange(251, dtype=np.float32) / 250, (rows, 784))
    return x, (np.arange(rows) % 10).astype(np.int32)


def dataset(x, y):
    """Return the arrays as a shuffled dataset, as TensorFlow's tutorials feed a model."""
    import tensorflow as tf

    shuffled = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x))
    return shuffled.batch(256).prefetch(tf.data.AUTOTUNE)


def run_in_memory(request):
    """Return the seconds of each epoch over arrays in memory: of ``fit``, or of a pass without a model."""
    x, y = arrays(request["rows"])
    if request["measure"] == "fit":
        data = dataset(x.reshape(-1, *SHAPES[request["model"]]), y)
        return fit_seconds(request["model"], data, request["epochs"])
    data = dataset(x, y)
    seconds = []
    for _ in range(request["epochs"]):
        started = time.monotonic()
        rows = sum(int(x.shape[0]) for x, _ in data)
        seconds.append(time.monotonic() - started)
        assert rows == request["rows"]
    return seconds

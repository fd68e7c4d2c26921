"""The models that the feeding benchmarks train, the same for every contender."""

import time

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
    """Train; return the seconds of each epoch."""
    import keras

    marks = []
    watch = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: marks.append(time.monotonic()),
        on_epoch_end=lambda epoch, logs: marks.append(time.monotonic()),
    )
    model = keras.Sequential([keras.Input(SHAPES[name]), *layers(name)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss)
    model.fit(dataset, epochs=epochs, verbose=0, callbacks=[watch])
    return [end - begin for begin, end in zip(marks[::2], marks[1::2], strict=True)]

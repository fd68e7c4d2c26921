"""The network of a key, and the functions that train it: for ``tfos.fit_each``, and for ``applyInPandas``."""

import os

_EPOCHS, _BATCH = 5, 32


def build():
    """Return a network of 161 weights, compiled."""
    import keras

    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model


def trained(model, x, y):
    """Train a model; return it with its loss and the memory of this process."""
    import psutil

    loss = model.fit(x, y, batch_size=_BATCH, epochs=_EPOCHS, verbose=0).history["loss"][-1]
    return model, {"loss": loss, "memory": psutil.Process().memory_info().rss / 2**20}


def new_model(_store, rows):
    """Train a model that is built for the key."""
    return trained(build(), rows["x"], rows["y"])


def one_model(_store, rows, model):
    """Train the model of all keys."""
    return trained(model, rows["x"], rows["y"])


def in_pandas(key, frame):
    """Do the same in a function for ``applyInPandas``, as one writes it."""
    import tempfile
    import zlib

    import keras
    import numpy as np
    import pandas as pd

    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    keras.backend.clear_session()  # without it memory grows faster
    keras.utils.set_random_seed(zlib.crc32(str(key).encode()))
    model, metrics = trained(build(), np.stack(frame["x"]), frame["y"].to_numpy())
    with tempfile.TemporaryDirectory() as scratch:
        model.save(f"{scratch}/model.keras")
        with open(f"{scratch}/model.keras", "rb") as file:
            data = file.read()
    return pd.DataFrame([{"store": key[0], "rows": len(frame), "metrics": metrics, "model": data}])


RESULTS = "store int, rows bigint, metrics map<string,double>, model binary"


def counted_model(directory, store, rows):
    """Train as `new_model` does, and count the call."""
    import uuid

    with open(f"{directory}/{store}-{uuid.uuid4().hex}", "w"):
        pass
    return new_model(store, rows)

"""A language model in Keras, and the time of its epochs: what each contender on a GPU trains."""

import time

VOCABULARY, LENGTH = 8192, 256
SIZES = {
    "small: 4 layers of 256": {"width": 256, "layers": 4, "batch": 64, "steps": 100},
    "large: 12 layers of 768": {"width": 768, "layers": 12, "batch": 32, "steps": 50},
}


def texts(settings):
    """Return the tokens of one epoch's rows, int32 of shape (rows, LENGTH + 1): a row's next token follows from it."""
    import numpy as np

    random = np.random.default_rng(0)
    rows = settings["batch"] * settings["steps"]
    return (random.integers(0, 97, (rows, 1)) + 31 * np.arange(LENGTH + 1)).astype(np.int32) % VOCABULARY


def language_model(settings):
    """Return a compiled decoder of so many layers, which computes in bfloat16."""
    import keras
    from keras import layers, ops

    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy("mixed_bfloat16")
    width = settings["width"]
    tokens = keras.Input((LENGTH,), dtype="int32")
    places = layers.Embedding(LENGTH, width)(ops.arange(LENGTH))
    x = layers.Embedding(VOCABULARY, width)(tokens) + places
    for _ in range(settings["layers"]):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(width // 64, 64)(y, y, use_causal_mask=True)
        y = layers.LayerNormalization()(x)
        x = x + layers.Dense(width)(layers.Dense(4 * width, "gelu")(y))
    logits = layers.Dense(VOCABULARY, dtype="float32")(layers.LayerNormalization()(x))
    model = keras.Model(tokens, logits)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def train(data, settings, epochs, wait=None):
    """Train on arrays or on batches; return the moments at which the epochs after the first began and ended.

    Also seconds until the first epoch's end, which are mostly those of XLA's compiler, and the last loss. `wait` is
    called after the first epoch: workers that train beside each other wait for one another there.
    """
    import keras

    begin = time.perf_counter()
    moments = []

    def on_epoch_end(epoch, _):
        moments.append(time.time())
        if epoch == 0:
            moments[0] = time.perf_counter() - begin
            if wait:
                wait()
            moments.append(time.time())

    model = language_model(settings)
    how = {"epochs": epochs, "callbacks": [keras.callbacks.LambdaCallback(on_epoch_end=on_epoch_end)], "verbose": 0}
    if isinstance(data, tuple):
        history = model.fit(*data, batch_size=settings["batch"], shuffle=False, **how)
    else:
        history = model.fit(data, **how)
    return {"first": moments[0], "moments": moments[1:], "loss": history.history["loss"][-1]}

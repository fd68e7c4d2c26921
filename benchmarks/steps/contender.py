"""Contender: a model that some processes train together, by ``fit`` as in a node, or without this package.

All have the same rows in memory, and take the same steps: a forward pass, the gradients, their sum over the workers,
the optimizer, one metric. Without this package there are tf_keras's own ``fit``; that of Keras 3 with the two functions
that fail under the strategy repaired by hand, and no more; and a loop written by hand.
"""

import importlib
import json
import os
import socket
import subprocess
import sys
import time
import traceback
from itertools import repeat

from benchmarks.common.rounds import serve_rounds

_FEATURES, _CLASSES = 64, 10
OURS = "fit", "tf_keras: fit"


def _data(batch, steps):
    """Return features, labels and weights of one worker."""
    import numpy as np

    random = np.random.default_rng(0)
    rows = batch * steps
    labels = random.integers(0, _CLASSES, rows)
    return random.random((rows, _FEATURES), "f4"), labels, np.ones(rows, "f4")


def _model(keras, width, depth):
    layers = [keras.layers.Dense(width, "relu") for _ in range(depth)]
    return keras.Sequential([keras.Input((_FEATURES,)), *layers, keras.layers.Dense(_CLASSES, "softmax")])


def _keras(settings):
    return importlib.import_module("tf_keras" if settings["by"].startswith("tf_keras") else "keras")


def _repair(settings):
    """Repair what fails in Keras 3's ``fit`` under the strategy: how it builds the model, and how it reduces logs."""
    import keras
    import tensorflow as tf
    from keras.src.backend.tensorflow import trainer

    def build(model, iterator=None, data_batch=None):
        with model.distribute_strategy.scope():
            model._symbolic_build(data_batch=tuple(map(tf.zeros_like, _data(settings["batch"], 1))))

    def reduce_per_replica(values, strategy, reduction):
        return tf.nest.map_structure(lambda value: strategy.reduce("MEAN", value, axis=None), values)

    keras.Model._maybe_symbolic_build = build
    trainer.reduce_per_replica = reduce_per_replica


def _fit(strategy, settings):
    """Return a function that trains for an epoch by ``fit``, and returns the times at which its steps end."""
    import tensorflow as tf

    from tensorflowonspark.keras.shards import mark_shard

    with strategy.scope():
        model = _model(_keras(settings), settings["width"], settings["depth"])
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    dataset = tf.data.Dataset.from_tensor_slices(_data(settings["batch"], settings["steps"])).batch(settings["batch"])
    dataset = dataset.prefetch(tf.data.AUTOTUNE)
    if settings["by"] in OURS:
        dataset = mark_shard(dataset)
    else:
        dataset = strategy.distribute_datasets_from_function(lambda _context: dataset)

    def epoch():
        ends = []
        notes = _keras(settings).callbacks.LambdaCallback(
            on_train_batch_end=lambda *_, **__: ends.append(time.perf_counter())
        )
        model.fit(dataset, steps_per_epoch=settings["steps"], verbose=0, callbacks=[notes])
        return ends

    return epoch


def _loop(strategy, settings):
    """Return a function that trains for an epoch by a loop written by hand, and returns the same."""
    import keras
    import tensorflow as tf

    with strategy.scope():
        model = _model(keras, settings["width"], settings["depth"])
        optimizer = keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)
        accuracy = keras.metrics.SparseCategoricalAccuracy()
        loss_of_rows = keras.losses.SparseCategoricalCrossentropy(reduction="none")
    rows = settings["batch"] * strategy.num_replicas_in_sync

    def replica_step(x, y, weights):
        with tf.GradientTape() as tape:
            predicted = model(x, training=True)
            loss = tf.reduce_sum(loss_of_rows(y, predicted) * weights) / rows
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        accuracy.update_state(y, predicted)
        return loss

    @tf.function
    def step(iterator):
        losses = strategy.run(replica_step, args=next(iterator))
        return strategy.reduce("SUM", losses, axis=None)

    dataset = tf.data.Dataset.from_tensor_slices(_data(settings["batch"], settings["steps"])).batch(settings["batch"])
    dataset = dataset.prefetch(tf.data.AUTOTUNE)
    distributed = strategy.distribute_datasets_from_function(lambda _context: dataset)

    def epoch():
        accuracy.reset_state()
        iterator, ends = iter(distributed), []
        for _ in range(settings["steps"]):
            step(iterator)
            ends.append(time.perf_counter())
        float(accuracy.result())
        return ends

    return epoch


def work(settings):
    """Return the function of an epoch, which all workers must call; its first call traces."""
    if settings["by"] in OURS:
        from tensorflowonspark.keras import hooks

        hooks.install()
    if settings["by"] == "fit repaired by hand":
        _repair(settings)
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    return (_loop if settings["by"] == "a loop by hand" else _fit)(strategy, settings)


def addresses_of(count):
    """Return free addresses of this machine for so many workers."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    return addresses


def main(settings):
    """Serve rounds as the first worker; the others train on until this process ends them."""
    place = settings.get("place", 0)
    addresses = settings.get("addresses") or addresses_of(settings["workers"])
    if len(addresses) > 1:
        task = {"type": "worker", "index": place}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
    if place:
        epoch = work(settings)
        for _ in repeat(None):
            epoch()
    command = [sys.executable, "-m", "benchmarks.steps.contender"]
    others = [
        subprocess.Popen([*command, json.dumps({**settings, "addresses": addresses, "place": other})])
        for other in range(1, len(addresses))
    ]
    try:
        epoch = work(settings)

        def run_round(_request):
            began = time.perf_counter()
            ends = epoch()
            return {"begin": ends[0] - began, "step": (ends[-1] - ends[0]) / (len(ends) - 1)}

        serve_rounds(run_round)
    except Exception:
        traceback.print_exc()  # the process does not end by it
    finally:
        for each in others:
            each.kill()
            each.wait()
        os._exit(0)  # without the end of TensorFlow's collectives, which waits for the others


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

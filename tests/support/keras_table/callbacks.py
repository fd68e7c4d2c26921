"""Callbacks: what they do to a training, and what they write."""

import csv

import keras
import numpy as np

from tests.support.keras_table.cells import SYNCHRONOUS, cell, on
from tests.support.keras_table.columns import MULTI_WORKER
from tests.support.keras_table.training import linear, trained, weights_of

CHECKPOINTS = {
    "each epoch": ("{epoch}.keras", {}),
    "weights only": ("{epoch}.weights.h5", {"save_weights_only": True}),
    "the best": ("best.keras", {"save_best_only": True, "monitor": "loss"}),
    "each second batch": ("{epoch}-{batch}.keras", {"save_freq": 2}),
    "mode, initial_value_threshold": (
        "best.keras",
        {"save_best_only": True, "monitor": "loss", "mode": "min", "initial_value_threshold": 0.0},
    ),
}


def _files(column, result, suffixes=(".keras", ".h5")):
    """Add the models in the files that all workers see."""
    column.meet()
    found = {}
    for path in sorted(column.place().iterdir()):
        if path.suffix in suffixes:
            if path.name.endswith(".keras"):
                model = keras.models.load_model(path)
            else:
                model = linear()
                model.load_weights(path)
            found[path.name] = weights_of(model)
    column.meet()
    return {**result, "files": found}


@cell("Callbacks", *[f"ModelCheckpoint: {name}" for name in CHECKPOINTS])
def checkpoint(column, name):
    file, options = CHECKPOINTS[name.removeprefix("ModelCheckpoint: ")]
    callback = keras.callbacks.ModelCheckpoint(str(column.place() / file), **options)
    return _files(column, trained(column, callbacks=[callback]))


@cell("Callbacks", *[f"ModelCheckpoint inside of strategy.scope(): {name}" for name in list(CHECKPOINTS)[:2]])
def checkpoint_in_scope(column, name):
    file, options = CHECKPOINTS[name.removeprefix("ModelCheckpoint inside of strategy.scope(): ")]
    callback = keras.callbacks.ModelCheckpoint(str(column.place() / file), **options)
    with column.scope():
        result = trained(column, callbacks=[callback])
    return _files(column, result)


@cell("Callbacks", "BackupAndRestore: a training that was broken off goes on")
def backup(column):
    class Breaks(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                raise InterruptedError

    directory = str(column.place() / "backup")
    results = []
    for more in ([Breaks()], []):
        with column.scope():
            keras.utils.set_random_seed(5)
            model = linear()
            model.compile(keras.optimizers.Adam(0.02), "mse")
        try:
            history = model.fit(
                column.even(),
                epochs=4,
                verbose=0,
                callbacks=[keras.callbacks.BackupAndRestore(directory), *more],
            )
            results.append([history.epoch, history.history, weights_of(model)])
        except InterruptedError:
            column.meet()
    return results


@cell("Callbacks", "CSVLogger")
def csv_logger(column):
    path = column.place() / "log.csv"
    result = trained(column, callbacks=[keras.callbacks.CSVLogger(path)])
    column.meet()
    with path.open() as file:
        lines = list(csv.DictReader(file))
    column.meet()
    return {**result, "lines": [{name: _number(value) for name, value in line.items()} for line in lines]}


def _number(text):
    return np.nan if text == "NA" else float(text)


@cell("Callbacks", "EarlyStopping, restore_best_weights")
def stopping(column):
    callback = keras.callbacks.EarlyStopping("val_loss", patience=1, restore_best_weights=True)
    with column.scope():
        model = linear()
        model.compile(keras.optimizers.SGD(0.6), "mse")
    history = model.fit(column.even(), epochs=8, verbose=0, validation_data=column.uneven(), callbacks=[callback])
    return {"epochs": history.epoch, "history": history.history, "weights": weights_of(model)}


@cell("Callbacks", "History, a callback of one's own")
def own(column):
    seen = []

    class Notes(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append((0, batch, logs["loss"]))

        def on_epoch_end(self, epoch, logs=None):
            seen.append((1, epoch, logs["loss"]))

    return [trained(column, callbacks=Notes()), sorted(seen)]  # Keras may call it from several threads


@cell("Callbacks", "a callback that sets weights")
def setting(column):
    class Halves(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.set_weights([each * 0.5 for each in self.model.get_weights()])

    return trained(column, callbacks=[Halves()])


@cell("Callbacks", "a callback that stops the training in the midst of an epoch")
def stopped(column):
    class Stops(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch == 1

    return trained(column, callbacks=[Stops()], epochs=3)


@cell("Callbacks", "a callback that evaluates and predicts")
def evaluating(column):
    seen = []

    class Looks(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append(self.model.evaluate(column.x, column.y, verbose=0))
            seen.append(self.model.predict(column.x, verbose=0))

    return [trained(column, callbacks=[Looks()]), seen]


@cell("Callbacks", "LambdaCallback")
def expression(column):
    seen = []
    callback = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(logs["loss"]))
    return [trained(column, callbacks=[callback]), seen]


@cell("Callbacks", "CallbackList")
def container(column):
    with column.scope():
        model = linear()
        model.compile("sgd", "mse")
    seen = []
    inner = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(logs["loss"]))
    callbacks = keras.callbacks.CallbackList([inner], model=model, add_history=True)
    history = model.fit(column.even(), epochs=2, verbose=0, callbacks=callbacks)
    return [seen, history.history if history else None, weights_of(model)]


@cell("Callbacks", "LearningRateScheduler")
def scheduler(column):
    return trained(column, callbacks=[keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (epoch + 1))])


@cell("Callbacks", "OrbaxCheckpoint", refused=on(MULTI_WORKER, "OrbaxCheckpoint on several workers needs Keras on JAX"))
def orbax(column):
    place = column.place()
    result = trained(column, callbacks=[keras.callbacks.OrbaxCheckpoint(str(place))])
    column.meet()
    result["steps"] = sorted(path.name for path in place.iterdir() if (path / "_CHECKPOINT_METADATA").exists())
    result["latest"] = weights_of(keras.saving.load_model(place))
    column.meet()
    return result


@cell("Callbacks", "a callback that takes int and float of the optimizer's variables")
def numbers(column):
    seen = []

    class Looks(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            optimizer = self.model.optimizer
            seen.append([int(optimizer.iterations), float(optimizer.learning_rate)])

    return {**trained(column, callbacks=[Looks()]), "seen": seen}


@cell("Callbacks", "ProgbarLogger")
def bar(column):
    return trained(column, callbacks=[keras.callbacks.ProgbarLogger()])


@cell("Callbacks", "ReduceLROnPlateau")
def plateau(column):
    callback = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=0, min_delta=10.0)
    return trained(column, callbacks=[callback], epochs=3)


@cell("Callbacks", "RemoteMonitor: one message for each epoch")
def remote(column):
    from http.server import BaseHTTPRequestHandler, HTTPServer
    from threading import Thread

    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            asked.append(1)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        callback = keras.callbacks.RemoteMonitor(f"http://127.0.0.1:{server.server_port}", send_as_json=True)
        result = trained(column, callbacks=[callback])
    finally:
        server.shutdown()
        server.server_close()
    chief = column.ctx is None or column.ctx.is_chief
    return {**result, "asked": len(asked) if chief else 2}


@cell("Callbacks", "SwapEMAWeights")
def swapping(column):
    return trained(
        column,
        optimizer=lambda: keras.optimizers.SGD(0.05, use_ema=True, ema_momentum=0.5),
        callbacks=[keras.callbacks.SwapEMAWeights(swap_on_epoch=True)],
    )


@cell("Callbacks", "TensorBoard: files of one worker")
def tensorboard(column):
    result = trained(column, callbacks=[keras.callbacks.TensorBoard(str(column.place() / "board"))])
    column.meet()
    return {**result, "files": len(list(column.place().rglob("events*")))}


@cell("Callbacks", "TerminateOnNaN")
def nan(column):
    import tensorflow as tf

    data = column.even().map(lambda x, y, w: (x, tf.where(tf.equal(y, column.y[20]), np.nan, y), w))
    result = trained(column, data=data, callbacks=[keras.callbacks.TerminateOnNaN()], epochs=3)
    return len(result["history"].get("loss", []))


@cell("Callbacks", "ctx.checkpoint(...).callback()", columns=SYNCHRONOUS)
def own_checkpoint(column):
    if column.ctx is None:
        return trained(column)
    checkpoints = column.ctx.checkpoint(str(column.place() / "checkpoints"))
    return trained(column, callbacks=[checkpoints.callback()])

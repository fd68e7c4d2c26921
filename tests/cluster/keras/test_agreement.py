"""What a callback does on one worker alone stops all of them at one step, or is an error by name."""

from contextlib import nullcontext

import numpy as np
import pytest

import tensorflowonspark as tfos
from tensorflowonspark.errors import NodeError

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(480)]

BACKENDS = ["tensorflow", "jax"]
STEPS = 8  # of an epoch


def scope():
    import keras

    if keras.backend.backend() == "jax":
        return nullcontext()
    import tensorflow as tf

    strategies.append(tf.distribute.MultiWorkerMirroredStrategy()) if not strategies else None
    return strategies[0].scope()


strategies = []  # of this process


def fit(*callbacks, epochs=3):
    import keras

    with scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
    x = np.random.default_rng(0).random((8 * STEPS, 3)).astype("f4")
    history = model.fit(x, x[:, 0], batch_size=8, epochs=epochs, verbose=0, callbacks=list(callbacks))
    return len(history.epoch), int(model.optimizer.iterations.numpy())


def callback(**hooks):
    """Return a callback whose hooks take the model, and the number of the step or epoch."""
    import keras

    def method(act):
        return lambda self, number=None, logs=None: act(self.model, number)

    return type("Own", (keras.callbacks.Callback,), {name: method(act) for name, act in hooks.items()})()


def stop_at(number):
    def act(model, at):
        if at == number:
            model.stop_training = True

    return act


def stopped(_, ctx):
    """Return the epochs and the steps that each training has taken, which worker 1 has stopped."""
    import threading

    def alone(**hooks):
        return [callback(**hooks)] if ctx.index == 1 else []

    def stop_within(model, at):
        if at == 0:
            model.stop_training = False
            threading.Timer(0.0, stop_at(0), (model, 0)).start()

    return {
        "a step": fit(*alone(on_train_batch_end=stop_at(2))),
        "the beginning of a step": fit(*alone(on_train_batch_begin=stop_at(2))),
        "the beginning of an epoch": fit(*alone(on_epoch_begin=stop_at(1))),
        "the end of an epoch": fit(*alone(on_epoch_end=stop_at(1))),
        "another thread": fit(*alone(on_epoch_begin=stop_within))[1] % STEPS,
        "all": fit(callback(on_train_batch_end=stop_at(2))),
        "nowhere": fit(),
    }


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_all_workers_stop_at_the_step_at_which_one_of_them_stops(spark, backend):
    results = tfos.run(spark, stopped, num_workers=2, env={"KERAS_BACKEND": backend})
    for found in results.values():
        assert found == {
            "a step": (1, 3),
            "the beginning of a step": (1, 3),
            "the beginning of an epoch": (2, STEPS + 1),
            "the end of an epoch": (2, 2 * STEPS),
            "another thread": results["worker:0"]["another thread"],
            "all": (1, 3),
            "nowhere": (3, 3 * STEPS),
        }


def evaluate(model, number):
    if number == 1:
        model.evaluate(np.ones((8, 3), "f4"), np.ones(8, "f4"), batch_size=8, verbose=0)


def differing(_, ctx):
    """Return the errors of trainings in which worker 1 alone does something."""

    def change_rate(model, number):
        if number == 1:
            model.optimizer.learning_rate = 0.1

    def set_weights(model, _):
        model.layers[0].kernel.assign(np.ones((3, 8)))

    texts = {}
    for name, hooks in {
        "evaluate after a step": {"on_train_batch_end": evaluate},
        "evaluate before a step": {"on_train_batch_begin": evaluate},
        "rate": {"on_train_batch_end": change_rate},
        "rate at the end of an epoch": {"on_epoch_end": change_rate},
        "weights": {"on_epoch_begin": set_weights},
        "weights at the end": {"on_train_end": set_weights},
    }.items():
        with pytest.raises(tfos.ClusterError) as raised:
            fit(*([callback(**hooks)] if ctx.index == 1 else []))
        texts[name] = str(raised.value)
    fit(callback(on_train_batch_end=evaluate, on_epoch_end=evaluate))  # on all workers
    return texts


DRIFTS = {
    "rate": "learning_rate",
    "rate at the end of an epoch": "learning_rate",
    "weights": "kernel",
    "weights at the end": "kernel",
}


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_one_worker_does_alone_is_an_error_that_names_it(spark, backend):
    results = tfos.run(spark, differing, num_workers=2, env={"KERAS_BACKEND": backend})
    alone = {
        "jax": ["model.evaluate on worker 1 in a callback of model.fit", "worker 0 goes on"],
        "tensorflow": ["takes a training step", "takes a step of evaluate", "worker:0", "worker:1"],
    }[backend]
    drift = {
        "jax": "worker 0 and worker 1 have become different",
        "tensorflow": "worker:0 and worker:1 differ at the end",
    }
    for found in results.values():
        for each in ("evaluate after a step", "evaluate before a step"):
            assert all(text in found[each] for text in alone)
        for each, variable in DRIFTS.items():
            assert drift[backend] in found[each]
            assert variable in found[each]


def evaluates_at_the_end(_, ctx):
    fit(*([callback(on_epoch_end=evaluate)] if ctx.is_chief else []))


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_evaluation_by_the_chief_alone_at_the_end_of_an_epoch_is_an_error(spark, backend):
    with pytest.raises(NodeError) as raised:
        tfos.run(spark, evaluates_at_the_end, num_workers=2, env={"KERAS_BACKEND": backend})
    calls = ["model.evaluate", "model.fit (an epoch ends)"]  # in the order in which they come
    texts = [
        f"its program called {one}, and another worker's {other} in its place" for one, other in (calls, calls[::-1])
    ]
    if backend == "tensorflow":
        texts = ["worker:0 takes a step of evaluate while worker:1 is at the end of an epoch",
                 "worker:1 is at the end of an epoch while worker:0 takes a step of evaluate"]  # fmt: skip
    assert any(each in str(raised.value) for each in texts)

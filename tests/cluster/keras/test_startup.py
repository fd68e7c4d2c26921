"""Programs that use TensorFlow before they make their strategy."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import tensorflowonspark as tfos
from tests.support.programs import small_frame, small_model, wait_for


@pytest.mark.masters("local")
def test_a_strategy_that_is_made_late(spark, tmp_path):
    """Datasets, variables and iterators that were made before go on, and no worker waits for the other one's start."""

    def program(args, ctx):
        import keras
        import tensorflow as tf

        started = Path(args) / "started"
        if ctx.index:
            wait_for(started.exists)
        keras.utils.set_random_seed(3)
        dataset = ctx.dataset(16, features="features", label="label")
        variable = tf.Variable(1.0)
        iterator = iter(dataset)
        x, _, _ = next(iterator)
        started.touch()
        with tf.distribute.MultiWorkerMirroredStrategy().scope():
            model = small_model()
        history = model.fit(dataset, epochs=2, verbose=0)
        variable.assign_add(1.0)
        rest = sum(len(each) for each, _, _ in iterator)
        weights = [np.asarray(weight.numpy()) for weight in model.weights]
        return history.history["loss"], weights, float(variable), len(x) + rest

    one, two = tfos.run(spark, program, str(tmp_path), num_workers=2, data=small_frame(spark, [30, 20])).values()
    assert one[0] == pytest.approx(two[0])
    assert (one[2], one[3]) == (two[2], two[3]) == (2.0, 25)
    for mine, theirs in zip(one[1], two[1], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)


@pytest.mark.masters("local")
def test_the_death_of_a_worker_of_a_strategy_that_is_made_late(spark):
    """TensorFlow has no service there by which its workers notice it: the driver does."""

    def program(args, ctx):
        import os
        import signal

        import keras
        import tensorflow as tf

        dataset = ctx.dataset(16, features="features", label="label")
        with tf.distribute.MultiWorkerMirroredStrategy().scope():
            model = small_model()

        def die(epoch, logs=None):
            if epoch == 1 and ctx.index == 1:
                os.kill(os.getpid(), signal.SIGKILL)

        model.fit(dataset, epochs=1000, verbose=0, callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=die)])

    with pytest.raises(tfos.NodeError, match="worker:1 .* SIGKILL"):
        tfos.run(spark, program, num_workers=2, data=small_frame(spark, [30, 20]))


@pytest.mark.masters("local")
def test_what_has_to_be_moved_is_named(spark):
    """The program names the strategy nowhere: TensorFlow starts alone."""

    def program(args, ctx):
        import tensorflow as tf

        _ = tf.constant(1) + 1
        getattr(tf.distribute, "".join(args))()

    with pytest.raises(tfos.NodeError, match=r"make it the first thing in the function, before ctx.dataset\(...\)"):
        tfos.run(spark, program, ["MultiWorker", "MirroredStrategy"], num_workers=2)


@pytest.mark.masters("local")
@pytest.mark.parametrize("handles", [False, True])
def test_a_strategy_leaves_sigterm_to_the_program(spark, handles):
    def program(args, ctx):
        import os
        import signal
        import time

        import tensorflow as tf

        received = []
        if args:
            signal.signal(signal.SIGTERM, lambda *_: received.append(True))
        tf.distribute.MultiWorkerMirroredStrategy()
        if ctx.index == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            wait_for(lambda: received)
        time.sleep(0 if args else 60)
        return bool(received)

    if handles:
        assert list(tfos.run(spark, program, handles, num_workers=2).values()) == [True, False]
    else:
        with pytest.raises(tfos.NodeError, match="worker:0 .* SIGTERM"):
            tfos.run(spark, program, handles, num_workers=2)


@pytest.mark.masters("local")
@pytest.mark.parametrize("late", [False, True])
def test_a_strategy_for_each_fold(spark, late):
    """With models of other shapes, and a worker that comes later than the other, which sends to it already."""

    def program(args, ctx):
        import time

        import keras
        import tensorflow as tf

        losses = []
        if args:
            tf.constant(1.0)
        for fold in range(3):
            with tf.distribute.MultiWorkerMirroredStrategy().scope():
                model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4 + fold), keras.layers.Dense(1)])
                model.compile("sgd", "mse")
            history = model.fit(ctx.dataset(16, features="features", label="label"), verbose=0)
            losses.append(history.history["loss"][0])
            time.sleep(0.5 * ctx.index)
        return losses

    one, two = tfos.run(spark, program, late, num_workers=2, data=small_frame(spark, [40, 40])).values()
    assert one == pytest.approx(two)
    assert len(one) == 3


@pytest.mark.masters("local")
@pytest.mark.timeout(300)  # nodes that are not forked import TensorFlow themselves
@pytest.mark.skipif(not find_spec("jax"), reason="Keras's backend for NumPy imports JAX, too")
@pytest.mark.parametrize("other", ["numpy", "jax"])
def test_two_backends_in_one_cluster_are_named(spark, other):
    """Each worker would wait for the other one, which takes no part in what it does."""

    def program(args, ctx):
        import os

        os.environ["KERAS_BACKEND"] = args if ctx.index else "tensorflow"  # as the hosts' own settings may
        import keras

        wait_for(lambda: False, 60)
        return keras.__version__

    with pytest.raises(tfos.NodeError, match=r"its Keras has the backend \w+, and that of worker:[01] on .* has \w+"):
        tfos.run(spark, program, other, num_workers=2, nodes=tfos.Nodes(warm_nodes=False))

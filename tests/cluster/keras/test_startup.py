"""Where in a program a strategy is made, how often, and what it leaves to the program."""

from importlib.util import find_spec

import pytest

import tensorflowonspark as tfos
from tests.support.programs import small_frame, wait_for


@pytest.mark.masters("local")
def test_what_has_to_be_moved_is_named(spark):
    def program(args, ctx):
        import tensorflow as tf

        _ = tf.constant(1) + 1
        ctx.strategy()

    with pytest.raises(tfos.NodeError, match=r"make it the first thing in the function, before ctx.dataset\(...\)"):
        tfos.run(spark, program, num_workers=2)


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
def test_a_strategy_for_each_fold(spark):
    """With models of other shapes, and a worker that comes later than the other, which sends to it already."""

    def program(args, ctx):
        import time

        import keras
        import tensorflow as tf

        losses = []
        for fold in range(3):
            with tf.distribute.MultiWorkerMirroredStrategy().scope():
                model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4 + fold), keras.layers.Dense(1)])
                model.compile("sgd", "mse")
            history = model.fit(ctx.dataset(16, features="features", label="label"), verbose=0)
            losses.append(history.history["loss"][0])
            time.sleep(0.5 * ctx.index)
        return losses

    one, two = tfos.run(spark, program, num_workers=2, data=small_frame(spark, [40, 40])).values()
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

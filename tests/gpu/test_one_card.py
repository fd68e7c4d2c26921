"""Workers on JAX on a machine with a GPU, without Spark: `make test-gpu`, which needs neither Spark nor TensorFlow."""

import os
import signal
import time

import numpy as np
import pyarrow as pa
import pytest

import tensorflowonspark as tfos
from tensorflowonspark.driver.feed.job import FeedRequest
from tensorflowonspark.task.gpus import all_gpus, free_gpus
from tests.support.gpu_nodes import gpu_cluster

pytestmark = pytest.mark.timeout(180)


def fitted(x, y, **how):
    """Return the weights after three epochs of a small model in float32."""
    import keras

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(x, y, epochs=3, batch_size=8, shuffle=False, verbose=0, **how)
    return [np.asarray(each) for each in model.get_weights()]


def rows():
    x = np.random.default_rng(0).random((44, 4), "f4")
    return x, x.sum(axis=1, keepdims=True)


def test_a_worker_has_the_gpu_and_trains_as_a_cpu_does():
    def program(_, ctx):
        import jax

        platform = jax.devices()[0].platform
        on_gpu = fitted(*rows())
        with jax.default_device(jax.devices("cpu")[0]):
            on_cpu = fitted(*rows())
        return ctx.gpus, os.environ["CUDA_VISIBLE_DEVICES"], platform, on_gpu, on_cpu

    with gpu_cluster(program, num_workers=1, env={"JAX_DEFAULT_MATMUL_PRECISION": "highest"}) as cluster:
        ((gpus, visible, platform, on_gpu, on_cpu),) = cluster.shutdown(150).values()
    assert (gpus, visible, platform) == (all_gpus()[:1], all_gpus()[0], "gpu")
    for ours, expected in zip(on_gpu, on_cpu, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)


def test_a_feed_gives_each_row_once_to_the_gpu():
    def program(_, ctx):
        import jax

        total = jax.jit(lambda x, weights: (x * weights).sum())
        found = 0.0
        for x, y, *weights in ctx.batches(8, features="id", label="id"):
            found += float(total(x, weights[0] if weights else np.ones(len(y), "f4")))
        return found

    parts = [[pa.record_batch({"id": pa.array(range(first, first + 11), pa.int32())})] for first in (0, 11, 22)]
    with gpu_cluster(program, num_workers=1) as cluster:
        cluster._feed(FeedRequest(parts))
        assert set(cluster.shutdown(150).values()) == {sum(range(33))}


def test_the_page_shows_the_memory_of_the_gpu():
    def program(_, ctx):
        fitted(*rows())
        time.sleep(8)  # for two reports of the supervisor

    used = []
    with gpu_cluster(program, num_workers=1) as cluster:
        while not used and any(node.state == "running" for node in cluster.metrics().nodes):
            used = [each.memory for node in cluster.metrics().nodes for each in node.gpus if each.memory > 1 << 30]
            time.sleep(0.2)
        cluster.shutdown(150)
    assert used  # JAX takes three quarters of the card


def test_a_killed_worker_goes_on_from_its_checkpoint_and_its_memory_is_free_again(tmp_path):
    def program(args, ctx):
        import keras

        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        checkpoint = ctx.checkpoint(args)
        kill = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, _: epoch == 2 and ctx.attempt == 0 and os.kill(os.getpid(), signal.SIGKILL)
        )
        model.fit(*rows(), epochs=4, batch_size=8, shuffle=False, verbose=0, callbacks=[checkpoint.callback(), kill])
        return ctx.attempt, ctx.gpus, int(model.optimizer.iterations)

    with gpu_cluster(program, str(tmp_path / "checkpoints"), num_workers=1, restarts=1) as cluster:
        assert set(cluster.shutdown(150).values()) == {(1, all_gpus()[:1], 24)}
    assert free_gpus() == all_gpus()


def test_two_workers_of_one_model_on_one_card_are_refused_by_name():
    with (
        pytest.raises(tfos.NodeError, match="share the GPU 0"),
        gpu_cluster(lambda _, ctx: fitted(*rows()), num_workers=1 + len(all_gpus())) as cluster,
    ):
        cluster.shutdown(150)


def test_two_workers_that_train_alone_share_a_card():
    settings = {"TFOS_JAX_ALONE": "1", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.3"}
    with gpu_cluster(lambda _, ctx: fitted(*rows())[0], num_workers=2, env=settings) as cluster:
        first, second = cluster.shutdown(150).values()
    np.testing.assert_allclose(first, second, rtol=1e-5)  # the last digits may differ

"""DTensor on the workers of a cluster: a mesh over their devices, and variables of which each holds a shard."""

import os

import pytest

import tensorflowonspark as tfos
from tests.support.local_cluster import local_cluster

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(180), pytest.mark.slow]


def train(args, ctx):
    """Train a layer whose columns are sharded; return what must be equal on all workers, and this worker's shapes."""
    import tensorflow as tf

    with pytest.raises(tfos.SpecError, match=r"'batch': 3\} has 3 devices, and 2 workers have 2 \(CPU\)"):
        ctx.init_dtensor({"batch": 3})
    mesh = ctx.init_dtensor({"batch": 1, "model": 2})
    dtensor = tf.experimental.dtensor
    columns = dtensor.Layout([dtensor.UNSHARDED, "model"], mesh)
    rows = dtensor.Layout(["model", dtensor.UNSHARDED], mesh)

    @tf.function
    def initial():
        return tf.reshape(tf.range(32.0), (8, 4)) / 32

    kernel = dtensor.DVariable(dtensor.call_with_layout(initial, columns))
    table = dtensor.DVariable(dtensor.call_with_layout(initial, rows))

    def everywhere(tensor):
        return dtensor.copy_to_mesh(tensor, dtensor.Layout.replicated(mesh, rank=len(tensor.shape)))

    def whole(tensor):
        replicated = dtensor.Layout.replicated(mesh, rank=len(tensor.shape))
        return dtensor.unpack(dtensor.relayout(tensor, replicated))[0].numpy()

    x, y = everywhere(tf.reshape(tf.range(24.0), (3, 8)) / 24), everywhere(tf.ones((3, 4)))

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.matmul(x, kernel) - y) ** 2)
        kernel.assign_sub(0.1 * tape.gradient(loss, kernel))
        return loss

    losses = [float(whole(step())) for _ in range(5)]
    ids = everywhere(tf.constant([1, 5]))
    gathered = whole(tf.function(lambda: tf.gather(kernel, ids))())
    with pytest.raises(tf.errors.OpError):
        tf.function(lambda: tf.gather(table, ids))()
    shards = [dtensor.unpack(each.read_value())[0].shape.as_list() for each in (kernel, table)]
    second = ctx.init_dtensor()
    return losses, gathered.tolist(), whole(kernel.read_value()).tolist(), (shards, second.dim_names, {**os.environ})


def train_alone():
    """Return the losses and the kernel of one process."""
    import tensorflow as tf

    kernel = tf.Variable(tf.reshape(tf.range(32.0), (8, 4)) / 32)
    x, y = tf.reshape(tf.range(24.0), (3, 8)) / 24, tf.ones((3, 4))
    losses = []
    for _ in range(5):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.matmul(x, kernel) - y) ** 2)
        kernel.assign_sub(0.1 * tape.gradient(loss, kernel))
        losses.append(float(loss))
    return losses, kernel.numpy()


def test_a_layer_whose_columns_are_sharded_trains_like_one_process():
    with local_cluster(train, num_workers=2) as cluster:
        first, second = cluster.join().values()
    assert first[:3] == second[:3]
    losses, kernel = train_alone()
    assert first[0] == pytest.approx(losses, rel=1e-5)
    assert first[2] == pytest.approx(kernel, rel=1e-5)
    assert first[1] == [first[2][1], first[2][5]]
    for number, (*_, (shards, dimensions, environment)) in enumerate((first, second)):
        assert (shards, dimensions) == ([[8, 2], [4, 4]], ["batch"])
        assert "TF_CONFIG" not in environment
        assert environment["DTENSOR_CLIENT_ID"] == str(number)

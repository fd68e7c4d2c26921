"""Checkpoints in a directory that hosts do not share."""

import re

import pytest

import tensorflowonspark as tfos


def _save(args, ctx):
    import tensorflow as tf

    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        state = tf.train.Checkpoint(weight=tf.Variable(1.0))
    checkpoint = ctx.checkpoint(args)
    checkpoint.restore(state)
    checkpoint.save(state, 1)


@pytest.mark.timeout(450)
def test_a_directory_that_each_host_has_for_itself_is_an_error_that_names_the_hosts(cluster):
    def drive(spark):
        with pytest.raises(tfos.NodeError) as caught:
            tfos.run(spark, _save, "/tmp/checkpoints", num_workers=3)
        return str(caught.value)

    text = cluster.run(drive)
    blind = ", ".join(rf"worker:{number} on ([\d.]+)" for number in (1, 2))
    found = re.search(rf"CheckpointError: {blind} does not see the chief's checkpoint in /tmp/checkpoints: ", text)
    assert set(found.groups()) < {each.address for each in cluster.hosts}


def _evaluate(args, ctx):
    import keras
    import numpy as np

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    rows = np.ones((8, 1), "float32"), np.ones((8, 1), "float32")
    if ctx.job == "evaluator":
        return ctx.evaluate_checkpoints(model, rows, directory=args)
    model.fit(*rows, epochs=2, callbacks=[ctx.checkpoint(args).callback()], verbose=0)
    return ctx.host


@pytest.mark.timeout(450)
def test_an_evaluator_on_another_host_sees_the_checkpoints_or_says_that_it_does_not(cluster):
    def drive(spark, shared):
        results = tfos.run(spark, _evaluate, shared, num_workers=1, evaluator=True)
        with pytest.raises(tfos.NodeError) as caught:
            tfos.run(spark, _evaluate, "/tmp/of-one-host", num_workers=1, evaluator=True)
        return results.validation, str(caught.value)

    validation, text = cluster.run(drive, str(cluster.shared / "evaluated"))
    assert validation["epoch"] == [0, 1]
    found = re.search(
        r"CheckpointError: evaluator:0 on ([\d.]+) does not see the chief's step-0000\w+-\w+ in /tmp", text
    )
    assert found[1] in {each.address for each in cluster.hosts}

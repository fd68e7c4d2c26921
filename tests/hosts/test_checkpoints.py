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

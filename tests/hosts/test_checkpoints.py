"""Checkpoints in a directory that hosts do not share."""

import pytest

import tensorflowonspark as tfos


def _save(args, ctx):
    import tensorflow as tf

    checkpoint = ctx.checkpoint(args)
    checkpoint.restore(state := tf.train.Checkpoint(weight=tf.Variable(1.0)))
    checkpoint.save(state, 1)


@pytest.mark.timeout(450)
def test_a_directory_that_each_host_has_for_itself_is_an_error_that_names_the_hosts(cluster):
    def drive(spark):
        with pytest.raises(tfos.NodeError) as caught:
            tfos.run(spark, _save, "/tmp/checkpoints", num_workers=3)
        return str(caught.value)

    text = cluster.run(drive)
    print(text)
    assert "CheckpointError" in text
    assert "/tmp/checkpoints" in text
    assert sum(each.address in text for each in cluster.hosts) == 2, text

"""Garbage, floods and replays at every port of a cluster that trains."""

import os
import time

import pytest

import tensorflowonspark as tfos
from tests.support.attack import Sizes, attack
from tests.support.processes import node_of
from tests.support.programs import small_frame, small_model

_NODE_MEGABYTES = 150  # that a node which trains may: TensorFlow's own growth over these feeds is in it
_FEEDS = 40


def train_again_and_again(args, ctx):
    """Train the same model anew with each feed; return what came of each."""
    import keras
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    results = []
    for feed in ctx.feeds():
        keras.utils.set_random_seed(3)
        with strategy.scope():
            model = small_model()
        history = model.fit(feed.dataset(16, features="features", label="label"), epochs=args, verbose=0)
        results.append((feed.rows, history.history["loss"]))
    return results


def _ports(cluster):
    """Return every address of ours that a cluster has."""
    nodes = [node.process.ready for node in cluster._monitor.roster.nodes]
    return [cluster._address, *(("127.0.0.1", each.feed_port) for each in nodes), *(each.feed_socket for each in nodes)]


def _trained_under_attack(spark, count, attackers, **settings):
    """Feed a cluster again and again for as long as it is attacked; return by how many megabytes each process grew."""
    data = small_frame(spark, [60, 20, 0, 50]).cache()
    with tfos.Cluster(spark, train_again_and_again, 2, num_workers=2, **settings) as cluster:
        cluster.train(data)
        cluster.train(data)  # TensorFlow has what it needs now
        pids = [os.getpid(), *(node.pid for node in cluster.nodes)]
        pids += [node_of(cluster, node.number).pid for node in cluster.nodes]
        feeds = 0
        with Sizes(pids) as sizes:
            crowd = [attack(_ports(cluster), seed, count // attackers) for seed in range(attackers)]
            while any(each.poll() is None for each in crowd):
                if feeds < _FEEDS:
                    cluster.train(data)
                    feeds += 1
                else:
                    time.sleep(0.1)
        assert [each.returncode for each in crowd] == [0] * attackers
        results = cluster.shutdown()
    assert feeds
    for trained in results.values():
        rows, losses = trained[0]
        assert len(trained) == feeds + 2
        for other_rows, other_losses in trained:
            assert other_rows == rows
            assert other_losses == pytest.approx(losses, rel=1e-4)
    return sizes.grown


@pytest.mark.masters("local")
@pytest.mark.slow
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_cluster_trains_on_as_if_nobody_had_called(spark, tls):
    grown = _trained_under_attack(spark, 600, 1, tls=tls)
    assert max(grown) < _NODE_MEGABYTES


@pytest.mark.slow
@pytest.mark.timeout(400)  # on a machine with other work to do
@pytest.mark.masters("local")
def test_ten_thousand_hostile_messages(spark):
    grown = _trained_under_attack(spark, 10_000, 2)
    print(f"grown by {', '.join(f'{each:.0f}' for each in grown)} MB")
    assert max(grown) < _NODE_MEGABYTES

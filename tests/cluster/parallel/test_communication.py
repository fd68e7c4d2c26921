"""How nodes communicate: the options of a strategy, and the network interface that they use."""

import json
import os
import socket

import numpy as np
import psutil
import pytest

import tensorflowonspark as tfos
from tests.support.local_cluster import local_cluster

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(180)]


def interfaces():
    """Return the IPv4 address of each interface of this host that is up, but those of other tests' networks."""
    states = psutil.net_if_stats()
    return {
        name: each.address
        for name, addresses in psutil.net_if_addrs().items()
        for each in addresses
        if each.family == socket.AF_INET and states[name].isup and not name.startswith("tf")
    }


def show(args, ctx):
    return ctx.host, json.loads(os.environ["TF_CONFIG"])["cluster"], {**os.environ}


@pytest.mark.parametrize("wanted", sorted(interfaces()))
def test_nodes_have_the_address_of_the_interface(spark, wanted):
    address = interfaces()[wanted]
    pattern = wanted if wanted == "lo" else f"{address}/32"
    for host, cluster, environment in tfos.run(
        spark, show, num_workers=2, network=tfos.Network(network_interface=pattern)
    ).values():
        assert host == address
        assert {each.rpartition(":")[0] for each in cluster["worker"]} == {address}
        assert environment["NCCL_SOCKET_IFNAME"] == f"={wanted}"
        assert environment["GLOO_SOCKET_IFNAME"] == wanted


@pytest.mark.parametrize(
    "options", [{}, {"num_ps": 1, "nodes": tfos.Nodes(ps_on_driver=True)}], ids=["workers", "a ps beside the driver"]
)
def test_a_host_without_the_interface_is_named_with_those_that_it_has(spark, options):
    with pytest.raises(tfos.StartError) as caught:
        tfos.run(spark, show, num_workers=1, chief=True, network=tfos.Network(network_interface="ib7"), **options)
    lines = str(caught.value).splitlines()
    assert lines[0] == "the cluster did not come up:"
    for node in ("chief:0", "worker:0", *(["ps:0"] if options else [])):
        (line,) = [each for each in lines if each.startswith(f"  {node} on ")]
        assert "network_interface='ib7': no interface of this host matches" in line
        assert "lo (127.0.0.1)" in line


def test_variables_of_the_driver_for_communication_are_passed_on(monkeypatch):
    monkeypatch.setenv("NCCL_IB_HCA", "mlx5_0")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("GRPC_VERBOSITY", "ERROR")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth9")
    cluster = local_cluster(show, env={"NCCL_DEBUG": "WARN"}, network=tfos.Network(network_interface="lo"))
    for name in ("NCCL_IB_HCA", "GRPC_VERBOSITY"):  # the nodes are to have them from the cluster's settings
        monkeypatch.delenv(name)
    with cluster:
        ((*_, environment),) = cluster.join().values()
    names = ("NCCL_IB_HCA", "NCCL_DEBUG", "GRPC_VERBOSITY", "NCCL_SOCKET_IFNAME")
    assert [environment[name] for name in names] == ["mlx5_0", "WARN", "ERROR", "=lo"]


def train_in_packs(args, ctx):
    """Train a step in packs; return the number of reductions in a step, and the weights."""
    with pytest.raises(
        tfos.SpecError, match=r"communication='nccl': TensorFlow sees no GPU on worker:\d \(127.0.0.1\)"
    ):
        ctx.strategy("nccl")
    import keras
    import tensorflow as tf

    strategy = ctx.strategy("ring", timeout=60, bytes_per_pack=args)
    keras.utils.set_random_seed(ctx.index)
    with strategy.scope():
        model = keras.Sequential([keras.Input((64,)), *(keras.layers.Dense(64, use_bias=False) for _ in range(4))])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)

    def on_worker(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2) / strategy.num_replicas_in_sync
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    step = tf.function(lambda x: strategy.run(on_worker, args=(x,))).get_concrete_function(tf.TensorSpec((8, 64)))
    reductions = [each for each in step.graph.get_operations() if each.type == "CollectiveReduceV2"]
    functions = {(each.get_attr("communication_hint"), each.get_attr("timeout_seconds")) for each in reductions}
    step(tf.random.stateless_normal((8, 64), seed=(ctx.index, 1)))
    return len(reductions), functions, [each.numpy() for each in model.weights]


@pytest.mark.slow
@pytest.mark.parametrize(("size", "packs"), [(None, 1), (2 * 64 * 64 * 4, 2)])
def test_gradients_are_reduced_in_packs_as_the_strategy_asks(size, packs):
    with local_cluster(train_in_packs, size, num_workers=2) as cluster:
        (first, options, weights), (second, _, others) = cluster.join().values()
    assert first == second == packs
    assert options == {(b"ring", 60.0)}
    for one, other in zip(weights, others, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_a_late_reduction_is_an_error():
    def program(args, ctx):
        import time

        import tensorflow as tf

        strategy = ctx.strategy(timeout=3)
        reduce = tf.function(lambda: strategy.reduce("SUM", tf.constant(1.0), axis=None))
        reduce()
        if ctx.index == 1:
            time.sleep(30)
        reduce()

    with pytest.raises(tfos.NodeError) as caught, local_cluster(program, num_workers=2) as cluster:
        cluster.join(timeout=60)
    assert "DeadlineExceededError" in caught.value.reason

"""What `ctx.strategy`, `ctx.connect`, `ctx.device` and `ctx.init_dtensor` refuse, and on which node."""

import re
import socket

import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from tensorflowonspark.config import ClusterSpec, Job
from tensorflowonspark.errors import ClusterError, SpecError
from tensorflowonspark.node.context import Context
from tensorflowonspark.node.parallel import ParallelAccess


class Node(ParallelAccess):
    """A node of a cluster, by its number, at addresses where nobody listens."""

    def __init__(self, number=0, **counts):
        self.spec = ClusterSpec(**counts)
        self.role = self.spec.roles[number]
        self.host = "h7"
        self.cluster = {}
        for role in self.spec.roles:
            self.cluster.setdefault(str(role.job), []).append("127.0.0.1:1")


def test_ranks_count_a_chief_and_workers_on_all_hosts_and_on_one():
    spec = ClusterSpec(num_workers=4, num_ps=1, chief=True, evaluator=True)
    hosts = {"ps": "a", "chief": "a", "evaluator": "b", "worker": "bbab"}
    found = {}
    for role in spec.roles:
        ctx = Context.__new__(Context)
        ctx.role, ctx.spec = role, spec
        ctx.cluster = {job: [f"{each}:{port}" for port, each in enumerate(names)] for job, names in hosts.items()}
        if role.job in (Job.CHIEF, Job.WORKER):
            found[str(role)] = (ctx.rank, ctx.local_rank, ctx.world_size)
        else:
            with pytest.raises(ClusterError, match=f"{role} does not train, and has no rank"):
                _ = ctx.local_rank
    ranks = {"chief:0": (0, 0), "worker:0": (1, 0), "worker:1": (2, 1), "worker:2": (3, 1), "worker:3": (4, 2)}
    assert found == {role: (*numbers, 5) for role, numbers in ranks.items()}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"communication": "mpi"}, "communication='mpi': expected one of 'auto', 'nccl', 'ring'"),
        ({"communication": "NCCL"}, "communication='NCCL': expected one of"),
        ({"timeout": 0}, "timeout=0: expected seconds above 0"),
        ({"timeout": "1m"}, "timeout='1m': expected seconds above 0"),
        ({"bytes_per_pack": 0}, "bytes_per_pack=0: expected a whole number of bytes from 1 on"),
        ({"bytes_per_pack": 1.5}, "bytes_per_pack=1.5: expected a whole number of bytes"),
        ({"communication": "nccl"}, r"communication='nccl': TensorFlow sees no GPU on worker:1 \(h7\), and NCCL needs"),
    ],
)
def test_a_strategy_that_can_not_be(arguments, words, monkeypatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [])
    with pytest.raises(SpecError, match=words):
        Node(1, num_workers=2).strategy(**arguments)


def test_a_strategy_beside_parameter_servers():
    with pytest.raises(SpecError, match="the cluster has parameter servers"):
        Node(num_workers=1, num_ps=1, chief=True).strategy()


def test_a_strategy_has_the_options_that_were_asked_for(monkeypatch):
    made = []
    monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", lambda **options: made.append(options))
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["a GPU"])
    for communication in ("auto", "nccl", "ring"):
        Node(num_workers=2).strategy(communication, timeout=7, bytes_per_pack=1 << 20)
    Node(num_workers=2).strategy()
    options = [each["communication_options"] for each in made]
    assert [each.implementation.value for each in options] == ["AUTO", "NCCL", "RING", "AUTO"]
    assert [(each.timeout_seconds, each.bytes_per_pack) for each in options] == [(7, 1 << 20)] * 3 + [(None, 0)]


def test_the_chief_alone_connects_and_not_to_itself():
    with pytest.raises(ClusterError, match=r"ctx.connect\(\) on worker:1: worker:0 connects to the other nodes"):
        Node(1, num_workers=2).connect()
    with pytest.raises(ClusterError, match=r"ctx.connect\(\) on worker:0: chief:0 connects"):
        Node(1, num_workers=1, chief=True).connect()
    with pytest.raises(SpecError, match="worker:0 is alone, and there is no node to place anything on"):
        Node(1, num_workers=1, evaluator=True).connect()
    with pytest.raises(SpecError, match="timeout=-1: expected seconds above 0"):
        Node(num_workers=2).connect(timeout=-1)


def test_nodes_that_do_not_serve_are_named_and_the_others_are_not():
    node = Node(num_workers=4)
    with socket.create_server(("127.0.0.1", 0)) as server:
        node.cluster["worker"][2] = f"127.0.0.1:{server.getsockname()[1]}"
        words = (
            "ctx.connect(): after 0.01 s (timeout) these nodes do not serve: worker:1 (127.0.0.1:1), worker:3 "
            "(127.0.0.1:1). Their program must call ctx.join_server()"
        )
        with pytest.raises(ClusterError, match=re.escape(words)):
            node.connect(timeout=0.01)


def test_a_process_with_a_strategy_does_not_connect(monkeypatch):
    monkeypatch.setattr(context.context(), "_collective_leader", "/job:worker/replica:0/task:0")
    with pytest.raises(ClusterError, match="has started with the workers of a MultiWorkerMirroredStrategy, or of DT"):
        Node(num_workers=2).connect()


def test_devices_of_nodes_that_do_not_exist_or_are_not_connected():
    with pytest.raises(SpecError, match="'worker:2' is no node of this cluster: it has worker:0, worker:1"):
        Node(num_workers=2).device("worker:2")
    with pytest.raises(ClusterError, match=r"worker:0 is not connected to worker:1: call ctx.connect\(\) first"):
        Node(num_workers=2).device("worker:1")


@pytest.mark.parametrize(
    ("counts", "mesh", "words"),
    [
        ({"num_workers": 1, "num_ps": 1}, None, "is for workers alone, and the cluster has 1 ps|1 worker"),
        ({"num_workers": 1, "evaluator": True}, None, "is for workers alone, and the cluster has evaluator, 1 worker"),
        ({"num_workers": 2}, {"batch": 0}, "expected a whole number from 1 on for 'batch'"),
        ({"num_workers": 2}, {"batch": 2.0}, "expected a whole number from 1 on for 'batch'"),
        ({"num_workers": 2}, {"x": 2, "y": 2}, r"'y': 2\} has 4 devices, and 2 workers have 2 \(CPU\): the product"),
    ],
)
def test_a_mesh_that_can_not_be(counts, mesh, words):
    with pytest.raises(SpecError, match=words):
        Node(**counts).init_dtensor(mesh)


def test_dtensor_comes_before_everything_else(monkeypatch):
    tf.constant(1)
    monkeypatch.setenv("TF_CONFIG", "{}")
    with pytest.raises(ClusterError, match=r"ctx.init_dtensor\(\) on worker:1: TensorFlow has started already"):
        Node(1, num_workers=2).init_dtensor()


def test_the_clients_of_dtensor_are_all_that_train():
    node = Node(1, num_workers=2, chief=True)
    node.cluster = {"chief": ["a:1"], "worker": ["b:2", "c:3"]}
    assert node._dtensor_variables() == {
        "DTENSOR_CLIENT_ID": "1",
        "DTENSOR_NUM_CLIENTS": "3",
        "DTENSOR_JOB_NAME": "worker",
        "DTENSOR_JOBS": "a:1,b:2,c:3",
    }

"""A real fork server and real nodes, without Spark: this process is their supervisor, a sleeping one the executor."""

import os
import pickle
import select
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Thread

import cloudpickle
import numpy as np
import psutil
import pytest
import wrapt

from tensorflowonspark import processes
from tensorflowonspark.config import ClusterConfig, ClusterSpec
from tensorflowonspark.messages import (
    FrameworkImported,
    Member,
    Members,
    NodeReady,
    ProgramBegun,
    Returned,
    RunDescribed,
    Stop,
)
from tensorflowonspark.node.setup import NodeSetup
from tensorflowonspark.supervisor.forkserver.forkserver_client import ForkServer
from tensorflowonspark.supervisor.forkserver.server_directory import ServerDirectory
from tensorflowonspark.supervisor.node_process import node_environment
from tests.support.messages import opened
from tests.support.processes import has_ended, is_fork_server
from tests.support.programs import wait_for

_IMPORT_SECONDS = 60.0  # of TensorFlow, on a machine that does other things too


class Executor:
    """An executor with a directory, and whatever fork servers it has."""

    def __init__(self, directory):
        self.directory = directory
        self.process = subprocess.Popen(["sleep", "600"])

    def fork_server(self, idle_seconds=600.0, **variables):
        environment = node_environment(os.environ, {"TFOS_TEST_EXECUTOR": str(self.process.pid), **variables})
        return ForkServer(str(self.directory), self.process.pid, environment, idle_seconds)

    def servers(self):
        mark = str(self.process.pid)
        found = []
        for process in filter(is_fork_server, psutil.process_iter()):
            try:
                if process.environ().get("TFOS_TEST_EXECUTOR") == mark and not has_ended(process):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def sockets(self):
        return list(self.directory.glob("tfos-warm-*/socket"))

    def started(self, **variables):
        server = self.fork_server(**variables)
        server.ensure()
        wait_for(self.sockets, _IMPORT_SECONDS)
        return server

    def close(self):
        self.process.kill()
        self.process.wait()
        wait_for(lambda: not self.servers(), 10)
        assert not list(self.directory.iterdir())


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """An executor whose fork server is up; tests leave it alone."""
    executor = Executor(tmp_path_factory.mktemp("shared"))
    executor.started()
    yield executor
    executor.close()


@pytest.fixture
def executor(tmp_path):
    executor = Executor(tmp_path)
    yield executor
    executor.close()


class Node:
    """A node that runs a program, however it was started."""

    def __init__(self, server, program, directory="", *, first=False):
        self._output, writing = os.pipe()
        self.process, self._pipe = processes.start(
            "tensorflowonspark.node",
            {**server._properties.environment},
            writing,
            fork=partial(server.fork, output=writing, first=first),
        )
        os.close(writing)
        spec = ClusterSpec(num_workers=1)
        order = cloudpickle.dumps((program, None))
        setup = NodeSetup(ClusterConfig(spec, order), 0, "127.0.0.1", "token", local_directory=str(directory))
        self._pipe.send(setup)
        assert isinstance(self._pipe.recv(), NodeReady)
        self._pipe.send(Members((Member(0, spec.roles[0], "127.0.0.1", 1),)))

    @property
    def forked(self):
        return not isinstance(self.process, subprocess.Popen)

    def result(self):
        message = opened(self._pipe.recv())
        assert isinstance(message, (ProgramBegun, Returned, FrameworkImported, RunDescribed)), message
        return pickle.loads(message.result) if isinstance(message, Returned) else self.result()

    def output(self):
        text = b""
        while select.select([self._output], [], [], 0)[0] and (more := os.read(self._output, 65536)):
            text += more
        return text.decode()

    def stop(self):
        self._pipe.send(Stop(1.0))
        return self.process.wait()


def describe(args, ctx):
    """Tell what distinguishes a process."""
    import random

    import numpy as np
    import tensorflow as tf

    print("to standard output")
    print("to standard error", file=sys.stderr)
    return {
        "forked": os.path.exists("/proc/self/comm") and open("/proc/self/comm").read() == "tfos-node\n",
        "group": (os.getpid(), os.getpgrp(), os.getsid(0)),
        "arguments": [os.path.basename(sys.argv[0]), len(sys.argv)],
        "path": sys.path,
        "environment": {name: value for name, value in os.environ.items() if not name.startswith(("TF", "KMP", "TPU"))},
        "niceness": os.getpriority(os.PRIO_PROCESS, 0),
        "signals": [str(signal.getsignal(each)) for each in (signal.SIGCHLD, signal.SIGINT, signal.SIGPIPE)],
        "input": os.readlink("/proc/self/fd/0"),
        "sum": float(tf.reduce_sum(tf.constant(np.ones((300, 300)) @ np.ones((300, 300))))),
        "random": (random.random(), np.random.rand(), float(tf.random.uniform(()))),
    }


def test_a_forked_node_is_like_a_fresh_one(shared):
    cold = Node(ForkServer("/nowhere", 1, shared.fork_server()._properties.environment), describe)
    warm = [Node(shared.fork_server(), describe) for _ in range(2)]
    assert [cold.forked, *(node.forked for node in warm)] == [False, True, True]
    fresh, *forked = (node.result() for node in (cold, *warm))
    assert [fresh.pop("forked"), *(each.pop("forked") for each in forked)] == [False, True, True]
    numbers = [each.pop("random") for each in (fresh, *forked)]
    assert all(len(set(kind)) == 3 for kind in zip(*numbers, strict=True))
    for each in (fresh, *forked):
        pid, *others = each.pop("group")
        assert others == [pid, pid]
    assert forked == [fresh, fresh]
    for node in (cold, *warm):
        assert node.stop() == 0
        assert {"to standard output", "to standard error"} <= set(node.output().splitlines())


def test_a_node_has_its_own_environment(shared):
    node = Node(shared.fork_server(A_VARIABLE="7"), lambda args, ctx: os.environ["A_VARIABLE"])
    assert node.forked
    assert node.result() == "7"
    assert node.stop() == 0


@pytest.mark.parametrize(("end", "code"), [(lambda: os._exit(3), 3), (lambda: os.abort(), -signal.SIGABRT)])
def test_the_end_of_a_forked_node_is_known(shared, end, code):
    node = Node(shared.fork_server(), lambda args, ctx: end())
    assert node.forked
    assert node.process.wait() == node.process.poll() == code
    processes.kill_group(node.process.pid)


def test_a_node_that_wants_another_environment_starts_afresh_and_logs_why(shared):
    node = Node(shared.fork_server(TF_CPP_MIN_LOG_LEVEL="1"), lambda args, ctx: "tensorflow" in sys.modules)
    assert not node.forked
    assert not node.result()
    assert node.output().startswith("DEBUG:tensorflowonspark:started with exec: its environment differs")
    assert node.stop() == 0


def test_one_that_fits_stays(shared):
    before = shared.servers()
    shared.fork_server().ensure()
    time.sleep(1)
    assert shared.servers() == before


def test_a_node_on_jax_is_forked_and_imports_it_as_a_fresh_one(executor):
    def program(args, ctx):
        seen = []
        wrapt.register_post_import_hook(lambda module: seen.append(module.__name__), "keras")
        began = [name in sys.modules for name in ("tensorflow", "jax", "keras")]
        import keras

        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        loss = model.train_on_batch(np.ones((8, 2)), np.ones((8, 1)))
        return began, seen, keras.config.backend(), bool(np.isfinite(loss))

    node = Node(executor.started(KERAS_BACKEND="jax"), program)
    assert node.forked
    assert node.result() == ([False, False, False], ["keras"], "jax", True)
    assert node.stop() == 0


@pytest.mark.slow
def test_of_several_one_becomes_the_server_and_what_it_replaces_ends_with_its_nodes(executor):
    threads = [Thread(target=executor.fork_server().ensure) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_for(executor.sockets, _IMPORT_SECONDS)
    [first] = executor.servers()
    node = Node(executor.fork_server(), lambda args, ctx: time.sleep(600))
    other = executor.fork_server(TF_CPP_MIN_LOG_LEVEL="1")
    wait_for(lambda: other.ensure() or not executor.sockets(), 10)  # on a busy host a reply may come too late
    wait_for(executor.sockets, _IMPORT_SECONDS)
    assert len(executor.servers()) == 2  # the first one waits for its node
    processes.kill_group(node.process.pid)
    assert node.process.wait() == -signal.SIGKILL
    wait_for(lambda: has_ended(first), 5)
    node = Node(other, lambda args, ctx: 1)
    assert node.forked
    assert node.result() == 1
    assert node.stop() == 0


@pytest.mark.slow
def test_first_nodes_wait_for_one_import(executor):
    def start(_):
        return Node(executor.fork_server(), lambda args, ctx: "tensorflow" in sys.modules, first=True)

    with ThreadPoolExecutor(3) as starting:
        nodes = list(starting.map(start, range(3), timeout=_IMPORT_SECONDS))
    assert len(executor.servers()) == 1
    assert [(node.forked, node.result()) for node in nodes] == [(True, True)] * 3
    assert [node.stop() for node in nodes] == [0] * 3


def test_who_waits_for_the_import_of_a_server_that_is_killed_starts_afresh(executor):
    with ThreadPoolExecutor(1) as starting:
        started = starting.submit(Node, executor.fork_server(), lambda args, ctx: 7, first=True)
        wait_for(executor.servers)
        for each in executor.servers():
            each.kill()
        node = started.result(timeout=10)
    assert (node.forked, node.result(), node.stop()) == (False, 7, 0)
    for left in executor.directory.iterdir():  # which Spark removes with its own
        shutil.rmtree(left)


def test_a_server_that_is_killed_disturbs_nobody_and_is_replaced(executor):
    server = executor.started()
    node = Node(server, lambda args, ctx: sys.stdin.readline() or "ends by itself")
    assert node.forked
    [process] = executor.servers()
    process.kill()
    assert node.result() == "ends by itself"
    assert node.process.poll() is None
    assert node.stop() == processes.UNKNOWN_EXIT
    assert executor.sockets()  # which nobody listens to
    afresh = Node(executor.fork_server(), lambda args, ctx: 1)
    assert not afresh.forked
    assert afresh.result() == 1
    assert afresh.stop() == 0
    executor.started()
    wait_for(lambda: len(executor.servers()) == 1, 5)
    wait_for(lambda: Node(executor.fork_server(), lambda args, ctx: 1).forked, _IMPORT_SECONDS)


@pytest.mark.slow
def test_a_server_that_hangs_holds_nobody_up(executor):
    server = executor.started()
    [process] = executor.servers()
    process.suspend()
    started = time.monotonic()
    node = Node(server, lambda args, ctx: 1)
    assert not node.forked
    assert node.result() == 1
    assert time.monotonic() - started < 5
    process.resume()  # it finds a request whose sender has gone another way
    time.sleep(1)
    assert not process.children()
    assert node.stop() == 0


def test_it_ends_with_the_executor_also_while_it_imports(executor):
    executor.fork_server().ensure()
    wait_for(executor.servers, 5)
    time.sleep(1)
    executor.process.kill()
    executor.process.wait()
    wait_for(lambda: not executor.servers(), 5)


@pytest.mark.parametrize("imports", [False, True])
def test_it_ends_when_sparks_directory_is_gone(executor, imports, tmp_path_factory):
    """Also while it imports, which takes a quarter of a minute without bytecode."""
    if imports:
        executor.fork_server(PYTHONPYCACHEPREFIX=str(tmp_path_factory.mktemp("empty"))).ensure()
        wait_for(executor.servers, 5)
        wait_for(lambda: any(each.path.endswith("/server") for each in executor.servers()[0].open_files()), 10)
    else:
        executor.started()
    [home] = executor.directory.iterdir()
    for path in (*home.iterdir(), home):
        path.rmdir() if path == home else path.unlink()
    wait_for(lambda: not executor.servers(), 5)


@pytest.mark.slow
def test_it_ends_when_no_cluster_has_been_there_for_long(executor):
    program = (
        "import os, sys, time\n"
        "from tensorflowonspark.supervisor.forkserver.forkserver_client import ForkServer\n"
        "ForkServer(sys.argv[1], int(sys.argv[2]), dict(os.environ), 2.0).ensure()\n"
        "sys.stdin.read()"
    )
    supervisor = subprocess.Popen(
        [sys.executable, "-c", program, str(executor.directory), str(executor.process.pid)],
        env=executor.fork_server()._properties.environment,
        stdin=subprocess.PIPE,
    )
    wait_for(executor.sockets, _IMPORT_SECONDS)
    time.sleep(4)
    assert executor.servers()
    supervisor.stdin.close()
    supervisor.wait()
    wait_for(lambda: not executor.servers(), 10)
    assert not list(executor.directory.iterdir())


def test_an_open_directory_is_not_used(executor):
    home = ServerDirectory.of(str(executor.directory), executor.process.pid)
    home.mkdir(mode=0o755)
    server = executor.fork_server()
    server.ensure()
    node = Node(server, lambda args, ctx: 1)
    assert not node.forked
    assert not executor.servers()
    assert node.result() == 1
    assert node.stop() == 0
    home.rmdir()

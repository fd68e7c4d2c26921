"""A standalone Spark cluster whose master, workers and drivers are on hosts of their own.

A test ships a function to a host, where it is the driver's program:

    def drive(spark):
        return tfos.run(spark, lambda ctx: ctx.host, num_workers=2)

    cluster.run(drive)
"""

import os
import subprocess
import sys
import time
import traceback
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path

import cloudpickle
import psutil
from pyspark import cloudpickle as spark_cloudpickle
from pyspark.sql import SparkSession

import tests
from tensorflowonspark.errors import ClusterError
from tests.support import hosts, jvm
from tests.support.paths import ROOT
from tests.support.processes import ended, has_ended, is_of_cluster
from tests.support.standalone import standalone_cluster, start_worker

NAMES = ("one", "two", "three", "four", "five", *(f"host-{number}" for number in range(6, 33)))
_DAEMON_SECONDS = 60.0
_SETTINGS = {
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


class Driver:
    """A driver's program, on a host."""

    def __init__(self, process, path):
        self._process, self._path = process, path

    @property
    def output(self):
        """What it has written, with what its nodes have written."""
        return self._path.with_suffix(".log").read_text(errors="replace")

    def wait_for(self, text, seconds=120):
        """Wait until it has written a text."""
        self._wait_until(lambda: text in self.output, repr(text), seconds)

    def wait_for_path(self, path, seconds=120):
        """Wait until it has made a file."""
        self._wait_until(path.exists, path.name, seconds)

    def _wait_until(self, is_written, what, seconds):
        end = time.monotonic() + seconds
        while not is_written():
            assert self._process.poll() is None, f"the driver has ended without {what}: {self.output[-3000:]}"
            assert time.monotonic() < end, f"the driver has not written {what}: {self.output[-3000:]}"
            time.sleep(0.05)

    def wait(self):
        """Wait for its end; return its exit code."""
        return self._process.wait()

    def result(self):
        """Wait for its end; return what the function returned, or raise what it raised."""
        assert not self.wait(), f"the driver ended with code {self._process.returncode}: {self.output[-3000:]}"
        return result_of(self._path.with_suffix(".result").read_bytes())


def java_processes(host):
    """Return the processes of a host that run Java now."""
    found = []
    for each in host.processes():
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            if each.name() == "java":
                found.append(each)
    return found


class HostCluster:
    """Spark's master on the first host, and a worker on each of `workers`.

    Attributes
    ----------
    network : tests.support.hosts.Network
        The network.
    hosts : list of tests.support.hosts.Host
        The hosts, "one", "two", "three".
    shared : pathlib.Path
        The directory that they share: /tmp and /dev/shm are each host's own.
    master : str
        The master's URL.
    """

    def __init__(self, network, members, directory, shared, master, workers):
        self.network, self.hosts, self.shared, self.master = network, members, shared, master
        self._daemons = [members[0].name, *(members[each].name for each in workers)]  # the hosts of master and workers
        self._directory = directory
        self._numbers = count()
        self._own = {}
        self._note_daemons(members)

    def start(self, function, *arguments, host=None, settings=None, env=None, seconds=400):
        """Start a driver's program on a host, by default the first.

        Parameters
        ----------
        function : callable
            It is called with a Spark session and these arguments.
        host : tests.support.hosts.Host, optional
            Where.
        settings : dict of str to str, optional
            Spark's, besides those of all programs.
        env : dict of str to str, optional
            Variables.
        seconds : float
            After which it is killed.
        """
        path = self._directory / f"driver-{next(self._numbers)}"
        options = {"spark.executor.extraJavaOptions": jvm.executor_options()} if jvm.executor_options() else {}
        options |= {**_SETTINGS, "spark.master": self.master, **(settings or {})}
        path.with_suffix(".program").write_bytes(cloudpickle.dumps((function, arguments, options)))
        command = [sys.executable, "-m", "tests.support.host_cluster", path]
        return self.submit(command, host=host, env=env, seconds=seconds, path=path)

    def run(self, *arguments, **options):
        """Run a driver's program as `start` does; return what the function returns."""
        return self.start(*arguments, **options).result()

    def submit(self, command, *, host=None, env=None, seconds=400, path=None):
        """Start a command on a host, by default the first, with what drivers have in their environment."""
        path = path or self._directory / f"driver-{next(self._numbers)}"
        command = ["timeout", "-k", "10", str(seconds), *map(str, command)]
        variables = {name: value for name, value in os.environ.items() if name != "SPARK_LOCAL_IP"}
        variables |= {"PYSPARK_PYTHON": sys.executable, "PYTHONUNBUFFERED": "1", "HOME": "/tmp", **(env or {})}
        with open(path.with_suffix(".log"), "wb") as log:
            options = {"env": variables, "stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
            return Driver((host or self.hosts[0]).popen(command, **options), path)

    def revive(self, number):
        """Start a host again that was killed, with a worker."""
        old = self.hosts[number]
        new = _host(self.network, old.name, self._directory, self.shared, old.address, names=old.names)
        self.hosts[number] = new
        self._daemons.remove(new.name)
        self.add_worker(number)

    def add_worker(self, number, **options):
        """Start a worker on a host, with options of `start_worker`; return its process."""
        host = self.hosts[number]
        process = start_worker(self._directory, self.master, number, 1, "1g", host, **options)
        self._daemons.append(host.name)
        self._note_daemons([host])
        return process

    def left(self, *, running=False):
        """Return what is left on each host, after some seconds: processes, and files of ours.

        Parameters
        ----------
        running : bool
            Whether a program still runs: its executors and their fork servers stay, and only its clusters have ended.
        """

        def find():
            return {each.name: found for each in self.hosts if (found := self._left(each, running))}

        return ended(find)

    def _left(self, host, running):
        if host.process.poll() is not None:
            return []
        found = []
        for process in host.processes():
            with suppress(psutil.Error):
                others = is_of_cluster(process) if running else not has_ended(process)
                if others and process.pid not in self._own[host.name]:
                    found.append(f"{process.pid}: {' '.join(process.cmdline())}")
        files = [path for folder in ("/tmp", "/dev/shm") for path in host.path(folder).rglob("tfos-*")]
        return found + [str(path) for path in files if not (running and path.name.startswith("tfos-warm-"))]

    def _note_daemons(self, members):
        """Wait until the master and the workers of hosts have begun to start; note their processes."""
        for host in members:
            end = time.monotonic() + _DAEMON_SECONDS
            while len(java_processes(host)) < self._daemons.count(host.name):
                assert time.monotonic() < end, f"Spark does not start on {host.name}"
                time.sleep(0.1)
            self._own[host.name] = {each.pid for each in host.processes()}


def _host(network, name, directory, shared, address=None, **options):
    kept = [path for path in (ROOT, Path(sys.prefix)) if str(path).startswith("/tmp/")]
    return network.host(name, address=address, mounts=hosts.own_folders(*kept, directory, shared), **options)


def all_names(number, addresses):
    """Return the lines of a host's /etc/hosts with all names."""
    return "\n".join(f"{address} {name}" for address, name in zip(addresses, NAMES, strict=False))


@contextmanager
def host_cluster(directory, workers=(0, 1, 2), cores=1, memory="1g", count_hosts=3, ipv6=False, names=None):
    """Start hosts and Spark on them; yield the `HostCluster`.

    Parameters
    ----------
    directory : pathlib.Path
        For logs and what the hosts share.
    workers : sequence of int
        The hosts that have a worker.
    cores : int
        Of each worker.
    memory : str
        Of each worker, as Spark writes it.
    count_hosts : int
        How many hosts there are.
    ipv6 : bool
        Whether they have addresses of IPv6 alone.
    names : callable, optional
        Given a host's number and the addresses of all, the lines of its /etc/hosts besides that of loopback; by
        default it has all names.
    """
    own, shared = directory / "logs", directory / "shared"
    own.mkdir()
    shared.mkdir()
    with ExitStack() as stack:
        network = stack.enter_context(hosts.Network(ipv6))
        addresses = [network.next_address() for _ in range(count_hosts)]
        members = [
            _host(network, NAMES[number], own, shared, address, names=(names or all_names)(number, addresses))
            for number, address in enumerate(addresses)
        ]
        places = [members[each] for each in workers]
        cluster = standalone_cluster(own, [cores] * len(workers), memory, places, members[0])
        yield HostCluster(network, members, own, shared, stack.enter_context(cluster), workers)


def slow_fit(ctx, strategy, *callbacks):
    """Train a small model for ten seconds and more; print "ready" after ten steps, and return the weights."""
    import keras

    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")

    class Slow(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            time.sleep(0.1)
            if batch == 10:
                print("ready", flush=True)

    dataset = ctx.dataset(8, features="x", label="y")
    model.fit(dataset, epochs=2, verbose=0, callbacks=[Slow(), *callbacks])
    return [each.tolist() for each in model.get_weights()]


def slow_rows(spark):
    """Return the rows of `slow_fit`."""
    data = spark.range(400).selectExpr("array(id % 2, id % 3, id % 5, id % 7) as x", "float(id % 2) as y")
    return data.repartition(4)


def outcome_of(function, *arguments):
    """Call a function; return what it returns or raises, for `result_of` in another process."""
    returned = raised = None
    try:
        returned = function(*arguments)
    except BaseException as error:  # pytest's own are none of Exception
        traceback.print_exc()
        raised = error if isinstance(error, (ClusterError, AssertionError)) else RuntimeError(traceback.format_exc())
    return cloudpickle.dumps((returned, raised))


def result_of(outcome):
    """Return what a function has returned in another process, or raise what it has raised."""
    returned, raised = cloudpickle.loads(outcome)
    if raised is not None:
        raise raised
    return returned


def main(path):
    """Be a driver's program: call the function, write what it returns or raises."""
    for pickler in (cloudpickle, spark_cloudpickle):  # executors can't import the tests
        pickler.register_pickle_by_value(tests)
    function, arguments, settings = cloudpickle.loads(path.with_suffix(".program").read_bytes())
    builder = SparkSession.builder.appName(path.name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    outcome = outcome_of(function, spark, *arguments)
    spark.stop()
    path.with_suffix(".result").write_bytes(outcome)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

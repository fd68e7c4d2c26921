"""Failures drawn at random on several hosts, in trainings that resume within an epoch: each row counts once in each.

``TFOS_TEST_DRAWS`` says how many there are, ``TFOS_TEST_DRAWS_SEED`` the seed of the first one; that of each other one
is higher by one.
"""

import json
import os
import signal
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict
from threading import Event, Thread

import pytest

import tensorflowonspark as tfos
from tensorflowonspark.errors import ClusterError
from tests.support.drawn_training import SPACING, WAYS, Draw
from tests.support.host_application import Application
from tests.support.host_cluster import host_cluster
from tests.support.processes import is_fork_server
from tests.support.resumed_cluster import counted, train

_DRAWS = int(os.environ.get("TFOS_TEST_DRAWS", "2"))
_SEED = int(os.environ.get("TFOS_TEST_DRAWS_SEED", "1"))
_DRAW_SECONDS = 200.0  # no draw may take longer, whatever happens in it
_FIND_SECONDS = 5.0  # for a process that gets a signal
NOTICE = "/tmp/notice"


def run_cluster(spark, way, sizes, args, settings):
    """Train to the program's end; return "", or the cause and the begin of the error that ended it."""
    frame = None
    rows = spark.range(0, len(sizes) * SPACING, 1, len(sizes))
    if way.kind in ("train", "run"):
        frame = rows.where(f"id % {SPACING} < element_at(array({', '.join(map(str, sizes))}), int(id / {SPACING}) + 1)")
    try:
        if way.kind == "train":
            with tfos.Cluster(spark, train, args, **settings) as cluster:
                how = {"start": way.start, "cache": way.cache, "order": way.order}
                cluster.train(frame, **how, global_shuffle=way.shuffle == "global")
        else:
            data = tfos.Data(frame, start=way.start, order=way.order) if frame else None
            tfos.run(spark, train, args, data=data, **settings)
    except ClusterError as error:
        return f"{getattr(error, 'cause', type(error).__name__)}: {str(error)[:600]}"
    return ""


class Striker(Thread):
    """Has a failure happen when its moment has come, unless the cluster has ended before.

    Attributes
    ----------
    struck : bool
        Whether it has happened.
    """

    def __init__(self, cluster, draw, directory):
        super().__init__(daemon=True)
        self._cluster, self._draw, self._directory = cluster, draw, directory
        self.ended = Event()
        self.struck = False
        self.error = None

    def run(self):
        try:
            if self._wait():
                self._strike(self._number())
        except Exception as error:  # shown by the test
            self.error = error

    def _wait(self):
        draw = self._draw
        if draw.failure in ("none", "node dies"):
            return False
        if draw.step is None:
            return not self.ended.wait(draw.after)
        while not (self._directory / f"marked-0-0-{draw.worker}").exists():
            if self.ended.wait(0.01):
                return False
        return True

    def _number(self):
        """Return the number of the host: that of the worker which is at the step, or the drawn one."""
        if self._draw.step is None:
            return self._draw.host
        address = json.loads((self._directory / f"restored-0-0-{self._draw.worker}").read_text())["host"]
        return next(number for number, host in enumerate(self._cluster.hosts) if host.address == address)

    def _strike(self, number):
        failure, host, network = self._draw.failure, self._cluster.hosts[number], self._cluster.network
        if failure == "cut":
            self.struck = True
            network.cut(host)
            time.sleep(self._draw.cut)
            network.heal(host)
        elif failure == "notice withdrawn":
            self.struck = True
            host.path(NOTICE).write_text("it is taken")
            time.sleep(self._draw.cut)
            host.path(NOTICE).unlink()
        elif failure in ("kill host", "notice"):
            self.struck = True
            if failure == "notice":
                host.path(NOTICE).write_text("it is taken")
                time.sleep(self._draw.cut)
            network.kill(host)
            time.sleep(self._draw.revived)
            self._cluster.revive(number)
        elif failure == "decommission":
            self._send(host, "executor", signal.SIGPWR)
        else:
            self._send(host, failure.removeprefix("kill "), signal.SIGKILL)

    def _send(self, host, what, number):
        """Send a signal to a process of a host; wait some seconds until there is one."""
        end = time.monotonic() + _FIND_SECONDS
        while time.monotonic() < end and not self.ended.wait(0.02):
            for process in host.processes():
                with suppress(Exception):  # it has ended meanwhile
                    if is_a(process, what):
                        process.send_signal(number)
                        self.struck = True
                        return


def is_a(process, what):
    """Return whether a process is a node, a supervisor or an executor."""
    words = process.cmdline()
    if what == "node":
        forked = "tensorflowonspark.supervisor.forkserver" in words and not is_fork_server(process)
        return forked or "tensorflowonspark.node" in words
    if what == "supervisor":
        return "tensorflowonspark.supervisor" in words
    return "org.apache.spark.executor.CoarseGrainedExecutorBackend" in words and process.name() == "java"


def run_draw(cluster, application, draw):
    """Run a draw; return what came of it."""
    directory = cluster.shared / f"draw-{draw.seed}"
    directory.mkdir()
    draw.write_files(directory)
    end = time.monotonic() + _DRAW_SECONDS
    striker = Striker(cluster, draw, directory)
    striker.start()
    errors = []
    for number, workers in enumerate(draw.workers):
        last = number == len(draw.workers) - 1
        restarts = tfos.RestartPolicy(3 if last else 0, backoff=0.1)
        settings = {"num_workers": (2, 3) if draw.elastic else workers, "restarts": restarts}
        settings["nodes"] = tfos.Nodes(notice=NOTICE)
        args = draw.arguments(directory, number)
        asked = WAYS[draw.way], draw.sizes, args, settings
        error = application.run(run_cluster, *asked, seconds=end - time.monotonic())
        if not number:
            striker.ended.set()
            striker.join()
            assert striker.error is None, f"the failure could not be made: {striker.error!r}"
        assert not (error and last), f"not trained to the end: {error}"
        errors.append(error)
    found = counted(directory, draw.epochs)
    assert not (wrong := found.differences(draw.ids)), f"epochs, rows too many and missing: {wrong}; {found.begun}"
    if draw.steps is not None:
        wrong = [number for number, rows in enumerate(zip(found.steps, draw.steps, strict=True)) if rows[0] != rows[1]]
        assert not wrong, f"steps with other rows than in an unbroken training: {wrong}; {found.begun}"
    # An executor that the last attempt did not need has its copies of checkpoints until a cluster starts there, or the
    # application ends.
    paths = [each for of in cluster.left(running=True).values() for each in of]
    left = [each for each in paths if "/tfos-run-" not in str(each)]
    assert not left, f"left behind: {left}"
    happened = "not struck" if draw.failure not in ("none", "node dies") and not striker.struck else "struck"
    ended = errors[0].partition(":")[0]
    restarts = len(found.begun) - len(draw.workers)
    return happened, f"ended ({ended})" if ended else "restarted" if restarts else "went on"


@pytest.fixture(scope="module")
def four_hosts(tmp_path_factory):
    """A cluster whose driver is on the first host, and whose workers are on the three others."""
    with host_cluster(tmp_path_factory.mktemp("draws"), workers=(1, 2, 3), count_hosts=4) as cluster:
        yield cluster


@pytest.mark.timeout(300 + 60 * _DRAWS)
def test_rows_count_once_in_each_epoch_whatever_happens_to_hosts(four_hosts):
    outcomes = Counter()
    application = Application(four_hosts, settings={"spark.decommission.enabled": "true"})
    for draw in map(Draw.from_seed, range(_SEED, _SEED + _DRAWS)):
        begin, before = time.monotonic(), len(application.output)
        try:
            outcome = run_draw(four_hosts, application, draw)
        except BaseException:
            print(f"TFOS_TEST_DRAWS=1 TFOS_TEST_DRAWS_SEED={draw.seed} repeats {json.dumps(asdict(draw))}")
            print(application.output[before:][-8000:])
            raise
        outcomes[(draw.failure, *outcome)] += 1
        print(f"{draw.seed}: {draw.summary}: {', '.join(outcome)}, in {time.monotonic() - begin:.1f} s", flush=True)
    application.close()
    assert not (left := four_hosts.left()), f"left behind: {left}"
    for each, number in sorted(outcomes.items()):
        print(number, *each)

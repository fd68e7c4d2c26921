"""What happens to a process when the one that started it ends, is killed, or is stopped for good."""

import json
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path

import psutil
import pytest

from tensorflowonspark import processes
from tensorflowonspark.supervisor.exit_status import explain
from tests.support.processes import our_processes
from tests.support.programs import wait_for

_PARENT = """
    import json, os, subprocess, sys, tempfile, time
    from tensorflowonspark import processes

    private = tempfile.mkdtemp()
    sleep = lambda pipe: subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL, start_new_session=True)
    process, _ = processes.start("", os.environ, orphan_timeout=0.4, private=private, fork=sleep)
    if {done}:
        processes.kill_group(process.pid)
        process.wait()
        os.rmdir(private)
    print(json.dumps([process.pid, private]), flush=True)
    time.sleep({seconds})
"""


def runs(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.smoke
@pytest.mark.parametrize("done", [False, True], ids=["at work", "about to end"])
@pytest.mark.parametrize("end", [None, signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
def test_nothing_outlives_what_started_it(done, end):
    code = textwrap.dedent(_PARENT).format(done=done, seconds=0 if end is None else 60)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        child, private = json.loads(parent.stdout.readline())
        if end is not None:
            wait_for(our_processes, 5)  # the guard, which may still be about to exec
            parent.send_signal(end)
        assert parent.wait(10) == {None: 0, signal.SIGTERM: -signal.SIGTERM}.get(end, -signal.SIGKILL)
    wait_for(lambda: not runs(child) and not our_processes(), 5)
    assert not Path(private).exists()


def test_what_stops_for_a_moment_goes_on():
    code = textwrap.dedent(_PARENT).format(done=False, seconds=60)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        child, _ = json.loads(parent.stdout.readline())
        for _ in range(4):
            parent.send_signal(signal.SIGSTOP)
            with pytest.raises(subprocess.TimeoutExpired):
                parent.wait(0.12)
            parent.send_signal(signal.SIGCONT)
            with pytest.raises(subprocess.TimeoutExpired):
                parent.wait(0.12)
        still_runs = runs(child)
        parent.kill()
    assert still_runs
    wait_for(lambda: not runs(child), 5)


_FAMILY = """
    import json, os, subprocess, sys, tempfile, time
    from tensorflowonspark import processes

    private = tempfile.mkdtemp()
    daemon = "import os, time; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); "
    daemon += "print(os.getpid(), flush=True); time.sleep(60)"
    node = f"import subprocess, sys, time; subprocess.run([sys.executable, '-c', {{daemon!r}}]); time.sleep(60)"
    environment = {{**os.environ, processes.FAMILY: private}}

    def start(pipe):
        return subprocess.Popen(
            [sys.executable, "-c", node], env=environment, stdout=subprocess.PIPE, start_new_session=True, text=True
        )

    process, _ = processes.start("", environment, orphan_timeout=0.4, private=private, fork=start)
    found = int(process.stdout.readline())
    print(json.dumps([process.pid, found, private]), flush=True)
    if {ends}:
        sys.stdin.readline()
        processes.kill_family(process.pid, private)
        os.rmdir(private)
    time.sleep(60)
"""


@pytest.mark.parametrize("ends", [True, False], ids=["by itself", "killed"])
def test_daemons_go_with_the_node_that_started_them(ends):
    code = textwrap.dedent(_FAMILY).format(ends=ends)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], text=True, **pipes) as parent:
        node, daemon, private = json.loads(parent.stdout.readline())
        assert runs(node)
        assert runs(daemon)
        assert psutil.Process(daemon).ppid() not in (node, parent.pid)
        if ends:
            parent.stdin.write("\n")
            parent.stdin.flush()
            wait_for(lambda: not runs(node) and not runs(daemon), 5)
        parent.kill()
    wait_for(lambda: not runs(node) and not runs(daemon) and not our_processes(), 5)
    assert not Path(private).exists()


def test_a_program_that_closes_the_pipe_to_its_supervisor_is_known_by_its_exit():
    program = (
        "import os, sys, time; from multiprocessing.connection import Connection; "
        "from tensorflowonspark.node.driver_link import Link; "
        "link = Link(Connection(int(sys.argv[1]))); time.sleep(0.3); os.closerange(3, 1000); "
        "print(flush=True); time.sleep(60)"
    )
    ours, theirs = Pipe()
    with subprocess.Popen(
        [sys.executable, "-c", program, str(theirs.fileno())], pass_fds=[theirs.fileno()], stdout=subprocess.PIPE
    ) as node:
        theirs.close()
        node.stdout.readline()
        with suppress(OSError):
            ours.send("alive")
        assert node.wait(10) == processes.PIPE_CLOSED_EXIT
    assert "closed the connection to its supervisor" in explain(processes.PIPE_CLOSED_EXIT, 0)[1]

"""What happens to a process when the one that started it ends, is killed, or is stopped for good."""

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from processes import our_processes
from programs import wait_for

_PARENT = """
    import json, os, subprocess, sys, tempfile, time
    from tensorflowonspark import children

    private = tempfile.mkdtemp()
    sleep = lambda pipe: subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL, start_new_session=True)
    process, _ = children.start("", os.environ, leash=0.4, private=private, fork=sleep)
    if {done}:
        children.kill_group(process.pid)
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


@pytest.mark.parametrize("done", [False, True], ids=["at work", "about to end"])
@pytest.mark.parametrize("end", [None, signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
def test_nothing_outlives_what_started_it(done, end):
    code = textwrap.dedent(_PARENT).format(done=done, seconds=0 if end is None else 60)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        child, private = json.loads(parent.stdout.readline())
        if end is not None:
            assert our_processes()  # the leash
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

"""``tfos`` and Python in processes of their own."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil

from tests.support.paths import ROOT

TFOS = [sys.executable, "-c", "import sys; from tensorflowonspark.cli import main; sys.exit(main())"]


def start_tfos(*words, **settings):
    """Start the command; its output and its errors go to one pipe."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([*TFOS, *map(str, words)], **streams, **settings)


def run_python(program, *arguments, seconds=110, **variables):
    """Run a program, which may make a Spark session, in a Python of its own; return what it writes."""
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": paths, "PYSPARK_PYTHON": sys.executable, **variables}
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=seconds)
    assert not done.returncode, done.stderr
    return done.stdout


def options_of(conf):
    """Return Spark's settings as words of a command line."""
    return [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]


def output_of(process, seconds):
    """Return what a process writes until its end; it and its children are gone afterwards.

    One that is still running then is an AssertionError with what it wrote, and where its JVMs stand.
    """
    try:
        return process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        members = [(one := psutil.Process(process.pid)), *one.children(recursive=True)]
        for member in members:
            with suppress(psutil.NoSuchProcess):
                if member.name() == "java":
                    member.send_signal(signal.SIGQUIT)  # it writes its threads' stacks
        time.sleep(2)
        for member in members:
            with suppress(psutil.NoSuchProcess):
                member.kill()
        raise AssertionError(f"still running after {seconds} s:\n{process.communicate()[0]}") from None
    finally:
        process.kill()

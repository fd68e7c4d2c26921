"""Contenders: command lines that are started afresh in each round, and the time until each has arrived."""

import atexit
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pyspark

_TFOS = [sys.executable, "-c", "import sys; from tensorflowonspark.cli import main; sys.exit(main())"]
_SUBMIT = [str(Path(pyspark.__file__).parent / "bin/spark-submit"), "--master", "local[2]"]
_RUN = ["run", "--master", "local[2]"]
_SESSION = "from pyspark.sql import SparkSession\nspark = SparkSession.builder.getOrCreate()\n"
# The time is the first thing that the program asks for; the file's name is that of its process.
_STAMP = "import time; now = time.time()\nimport os, sys\nopen(f'{sys.argv[1]}/{os.getpid()}', 'w').write(repr(now))\n"
_SECONDS = 300  # of one command


def _seconds(command, program, log, **variables):
    """Run a command with a program and the directory for its times; return the seconds to the last of these.

    Without a program they are those to the command's end.
    """
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, **variables}
    with tempfile.TemporaryDirectory() as directory:
        times = Path(directory, "times")
        times.mkdir()
        if program is not None:
            path = Path(directory, "program.py")
            path.write_text(program)
            command = [*command, str(path), str(times)]
        begin = time.time()
        subprocess.run(command, env=environment, stdout=log, stderr=log, check=True, timeout=_SECONDS, cwd=directory)
        ends = [float(each.read_text()) for each in times.iterdir()] or [time.time()]
        return max(ends) - begin


@cache
def _user_cache(log):
    """Return an environment whose cache has an archive of Spark's classes, as a first run has it written."""
    directory = tempfile.TemporaryDirectory()
    atexit.register(directory.cleanup)
    cached = {"XDG_CACHE_HOME": directory.name}
    _seconds([*_TFOS, *_RUN], _STAMP, log, **cached)
    end = time.monotonic() + _SECONDS
    while not any(Path(directory.name).glob("*/classes/*.jsa")):
        if time.monotonic() > end:
            raise TimeoutError("no archive was written after a run")
        time.sleep(0.5)
    return cached


def _together(log):
    """Return the seconds until a session and an import of TensorFlow, started at the same time, are both there."""
    with ThreadPoolExecutor(1) as importing:
        imported = importing.submit(TURNS["tensorflow"], log)
        return max(TURNS["session"](log), imported.result())


TURNS = {
    "first": lambda log: _seconds([*_TFOS, *_RUN, "--no-archive"], _STAMP, log),
    "later": lambda log: _seconds([*_TFOS, *_RUN], _STAMP, log, **_user_cache(log)),
    "two": lambda log: _seconds([*_TFOS, *_RUN, "--workers", "2"], _STAMP, log, **_user_cache(log)),
    "submit": lambda log: _seconds(_SUBMIT, "", log),
    "session": lambda log: _seconds(_SUBMIT, _SESSION + _STAMP, log),
    "together": _together,
    "tensorflow": lambda log: _seconds([sys.executable, "-c", "import tensorflow"], None, log),
}

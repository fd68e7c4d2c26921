"""Unchanged programs of 2.x, each run by spark-submit."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tests.support.paths import ROOT
from tests.support.programs import wait_for
from tests.support.standalone import standalone_cluster

EXAMPLES = ROOT / "examples" / "v2"
SPARK = Path(pyspark.__file__).parent
SECONDS = 240

TRAINED = r"^accuracy: (0\.9\d*|1\.000)$"
PROGRAMS = {  # with what a run prints
    "feed.py": TRAINED,
    "files.py": TRAINED,
    "estimator.py": TRAINED,
    "parallel_inference.py": rf"^predictions: 1797\n{TRAINED}",
    "cluster_inference.py": rf"^predictions: 1797, in order\n{TRAINED}",
    "streaming.py": r"^points: 5000 of 5000 by 2 nodes\nline: y = (2\.9|3\.0)\d x -(1\.9|2\.0)\d$",
    "argv.py --steps 60": r"^loss: 0\.0000\d\d after 60 steps$",
    "parameter_servers.py --driver_ps_nodes": TRAINED,
    "parameter_servers.py --driver_ps_nodes --join": TRAINED,
}
OF_KERAS = ["estimator.py"]  # whose tensors have other names then
MASTERS = os.environ.get("TFOS_TEST_MASTERS", "local,standalone").split(",")
# A standalone cluster has all that one machine has, so only tf_keras runs on one machine as well.
ON_LOCAL = [] if "standalone" in MASTERS else list(PROGRAMS)
RUNS = [
    *(("local[4]", "0", program) for program in ON_LOCAL if "local" in MASTERS),
    *(("local[4]", "1", program) for program in OF_KERAS if "local" in MASTERS),
    *(("standalone", "0", program) for program in PROGRAMS if "standalone" in MASTERS),
]


@pytest.fixture(scope="module")
def standalone(tmp_path_factory):
    """The URL of the master of two executors of one slot, on two addresses of this machine."""
    directory = tmp_path_factory.mktemp("standalone")
    with standalone_cluster(directory, cores=[1, 1], hosts=["127.0.0.1", "127.0.0.2"]) as master:
        yield master


@pytest.fixture
def master(request):
    """What `spark-submit --master` gets."""
    return request.getfixturevalue("standalone") if request.param == "standalone" else request.param


def submit(program, master, directory, **environment):
    """Run a program to its end, in a directory of its own; it succeeds, and prints what it should."""
    scratch = directory / "scratch"
    scratch.mkdir()
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.executor.cores": "1",
        "spark.local.dir": str(scratch),
    }
    options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    name, *arguments = program.split()
    command = [SPARK / "bin" / "spark-submit", "--master", master, *options, EXAMPLES / name, *arguments]
    ended = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, "SPARK_HOME": str(SPARK), "PYSPARK_DRIVER_PYTHON": sys.executable, **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    said = f"{ended.stdout}\n{ended.stderr[-8000:]}"
    assert ended.returncode == 0, said
    assert re.search(PROGRAMS[program], ended.stdout, re.MULTILINE), said
    wait_for(lambda: not list(scratch.rglob("tfos-*")), 10)  # the JVM ends last, and the fork server with it


def test_a_program_on_one_machine(tmp_path):
    submit("cluster_inference.py", "local[2]", tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 30)
@pytest.mark.parametrize(("master", "legacy_keras", "program"), RUNS, indirect=["master"])
def test_program(program, master, legacy_keras, tmp_path):
    submit(program, master, tmp_path, TF_USE_LEGACY_KERAS=legacy_keras)

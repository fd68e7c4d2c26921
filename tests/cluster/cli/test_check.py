"""``tfos check --master`` in a process of its own."""

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tensorflowonspark.driver.executor_checks import examine_executors, problems_of
from tensorflowonspark.task.environment import ExecutorEnvironment, own_environment
from tensorflowonspark.task.fabric import infiniband_ports
from tests.support.commands import TFOS


def check(*arguments, python=sys.executable):
    """Return exit code, output and errors."""
    environment = {**os.environ, "PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": sys.executable}
    done = subprocess.run(
        [*TFOS, "check", *arguments], check=False, env=environment, capture_output=True, text=True, timeout=110
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.masters("standalone")
def test_each_executor_is_examined_once(spark):
    own = ExecutorEnvironment(**own_environment())
    executors = examine_executors(spark)
    assert [each.slots for each in executors] == [1, 1]
    assert all(each.versions == own.versions and each.shared_memory for each in executors)
    assert not any(each.errors or each.unreachable for each in executors)
    assert problems_of(own, executors) == []


def test_executors_without_the_packages(tmp_path):
    """The job needs nothing but a Python on the executors."""
    venv.create(tmp_path / "bare", with_pip=False)
    code, output, errors = check("--gpu", "--master", "local[2]", python=tmp_path / "bare/bin/python")
    assert code == 1, errors
    assert re.search(
        r"^\S+ \(127\.0\.0\.1\) +3\.\d+\.\d+ +missing .* 0 +2 +\S+ \S+ +\S+.* reached$", output, re.MULTILINE
    ), output
    ports = ", ".join(each.device for each in infiniband_ports(Path("/sys/class/infiniband"))) or "none"
    assert re.search(rf"^executor +GPUs +InfiniBand +locked memory +NCCL\n\S+ .*{ports} ", output, re.MULTILINE), output
    for package in ("tensorflowonspark", "tensorflow", "keras", "pyarrow"):
        assert f": {package} can't be imported (ModuleNotFoundError: No module named '{package}'): install it" in errors
    assert "Traceback" not in errors


def test_a_python_that_executors_lack_and_dynamic_allocation():
    settings = [
        "dynamicAllocation.enabled=true",
        "dynamicAllocation.shuffleTracking.enabled=true",
        "task.maxFailures=1",
    ]
    words = [word for each in settings for word in ("--conf", f"spark.{each}")]
    code, output, errors = check("--master", "local-cluster[1,1,1024]", *words, python="/nonexistent/python")
    assert code == 1, errors
    assert re.search("^dynamic allocation +on: Spark starts executors when tasks need them", output, re.MULTILINE), (
        output
    )
    assert "an executor can't start Python" in errors
    assert "set PYSPARK_PYTHON to a Python that exists on the executors" in errors

"""``tfos`` where pyspark is installed nowhere, and a distribution of Spark has it, as in Spark's image."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tensorflowonspark.driver import preflight

INSTALLED = Path(pyspark.__file__).parent
# Hides the installed pyspark and py4j, and prints from where they are imported instead.
PROGRAM = """
import sys
from importlib.machinery import PathFinder

class Hidden:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in ("pyspark", "py4j"):
            path = [each for each in sys.path if "site-packages" not in each]
        return PathFinder.find_spec(name, path, target)

sys.meta_path = [each for each in sys.meta_path if each is not PathFinder] + [Hidden]
from tensorflowonspark.cli import main
code = main(sys.argv[1:])
if not code:
    import py4j, pyspark
    print(pyspark.__file__, py4j.__file__)
sys.exit(code)
"""


def dry_run(home):
    """Have ``tfos run`` print what it would do, with a SPARK_HOME; return exit code, output and errors."""
    environment = {**os.environ, **({"SPARK_HOME": str(home)} if home else {})}
    if not home:
        environment.pop("SPARK_HOME", None)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "run", "--dry-run", "--master", "local[2]", "--workers", "2", __file__],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.deep
def test_the_pyspark_below_spark_home_is_used(tmp_path):
    (tmp_path / "python/lib").mkdir(parents=True)
    (tmp_path / "python/pyspark").symlink_to(INSTALLED)
    (py4j,) = INSTALLED.glob("python/lib/py4j-*-src.zip")
    (tmp_path / "python/lib" / py4j.name).symlink_to(py4j)
    code, output, errors = dry_run(tmp_path)
    assert code == 0, errors
    assert "nodes     2 workers" in output
    files = [f"{tmp_path}/python/pyspark/__init__.py", f"{tmp_path}/python/lib/{py4j.name}/py4j/__init__.py"]
    assert output.splitlines()[-1].split() == files


@pytest.mark.deep
def test_a_spark_home_without_it_is_named(tmp_path):
    code, _, errors = dry_run(tmp_path)
    assert code == 1
    assert errors == (
        f"pyspark can't be imported, and SPARK_HOME={tmp_path} has no python/pyspark: set it to Spark's own directory, "
        f'or {sys.executable} -m pip install "pyspark>=3.5"\n'
    )


@pytest.mark.deep
def test_without_a_spark_home_it_is_to_be_installed():
    code, _, errors = dry_run(None)
    assert (code, errors) == (1, f'pyspark can\'t be imported: {sys.executable} -m pip install "pyspark>=3.5"\n')


@pytest.mark.parametrize("given", ["", "/somewhere"])
def test_processes_that_are_started_find_it_too(tmp_path, monkeypatch, given):
    (tmp_path / "python/pyspark").mkdir(parents=True)
    (tmp_path / "python/pyspark/__init__.py").touch()
    monkeypatch.setattr(preflight, "_version", lambda _: "")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", given)  # which is undone, as the removal of one that is not set is not
    preflight.add_pyspark()
    assert sys.path[-1] == str(tmp_path / "python")
    assert os.environ["PYTHONPATH"] == os.pathsep.join(filter(None, [given, str(tmp_path / "python")]))

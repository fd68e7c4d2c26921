"""The command lines of ``tfos submit``, and what they make of spark-submit's."""

import os
import re
import sys

import pytest

from tensorflowonspark.cli import main
from tensorflowonspark.cli.spark_settings import submit_environment


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("MASTER", "SPARK_CONF_DIR", "SPARK_HOME", "SPARK_REMOTE", "PYSPARK_PYTHON", "PYSPARK_SUBMIT_ARGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    (tmp_path / "job.py").write_text("")
    (tmp_path / "packed.tar.gz").write_bytes(b"")
    return tmp_path


def shown(capsys, *words):
    assert main(["submit", "--dry-run", *words]) == 0
    return dict(re.split(r"  +", line, maxsplit=1) for line in capsys.readouterr().out.splitlines())


def test_a_dry_run_shows_what_would_run_without_secrets(job, capsys):
    lines = shown(
        capsys, "--files", "a.csv", "-c", "spark.a.secret=AAA", "job.py", "--epochs", "2", "--password", "BBB"
    )
    assert lines["script"] == "job.py --epochs 2 --password '<redacted>'"
    assert lines["Spark"].startswith("--master 'local[*]' --name job.py ")
    assert lines["Spark"].endswith("--conf 'spark.a.secret=<redacted>' --deploy-mode client --files a.csv")
    assert lines["Python"] == sys.executable


@pytest.mark.parametrize(
    ("mode", "given", "python"),
    [
        ("client", [], sys.executable),
        ("client", ["-c", "spark.pyspark.driver.python=/own/python"], "/own/python"),
        ("cluster", [], None),  # the driver has the packed one beside it
    ],
)
def test_the_driver_has_a_python_that_is_there(job, capsys, mode, given, python):
    words = ["--master", "yarn", "--python-env", f"file://{job}/packed.tar.gz", "--deploy-mode", mode, *given, "job.py"]
    lines = shown(capsys, *words)
    assert re.findall(r"spark\.pyspark\.driver\.python=(\S+)", lines["Spark"]) == ([python] if python else [])
    assert f"--archives file://{job}/packed.tar.gz#environment" in lines["Spark"].replace("'", "")
    assert "spark.pyspark.python=./environment/bin/python" in lines["Spark"]
    assert lines["packed"].endswith("packed.tar.gz exists")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no.py"], "no.py: there is no such file"),
        (["--deploy-mode", "cluster", "job.py"], "--deploy-mode cluster needs --master yarn or k8s://URL"),
        (["--deploy-mode", "cluster", "--master", "spark://h:7077", "job.py"], "a standalone cluster runs no Python"),
        (["--python-env", "venv", "job.py"], "--python-env venv is for YARN and Kubernetes"),
    ],
)
def test_what_can_not_be_right_is_refused_before_spark_starts(job, capsys, words, message):
    assert main(["submit", *words]) == 2
    assert message in capsys.readouterr().err


def test_an_option_after_the_program_is_its_own_and_noted(job, capsys):
    assert main(["submit", "--dry-run", "job.py", "--master", "yarn"]) == 0
    assert "--master stands after job.py, so it is the script's own: options of tfos submit" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("master", "python"), [("yarn", sys.executable), ("local[*]", sys.executable), ("k8s://a", None)]
)
def test_only_a_pod_has_a_python_of_its_own(job, monkeypatch, master, python):
    monkeypatch.setenv("SPARK_REMOTE", "sc://host")
    found = submit_environment(master)
    assert found.get("PYSPARK_PYTHON") == python
    assert "SPARK_REMOTE" not in found
    assert found["PATH"] == os.environ["PATH"]

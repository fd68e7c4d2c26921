import sys

import pytest

from tensorflowonspark import cli
from tensorflowonspark.driver import preflight
from tensorflowonspark.errors import EnvironmentNotReady


def java(directory, version):
    home = directory / "java"
    (home / "bin").mkdir(parents=True)
    script = home / "bin" / "java"
    script.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2020-01-01' >&2\n")
    script.chmod(0o755)
    return str(home)


def test_this_machine_is_ready(capsys):
    assert set(preflight.check_environment()) == {"python", "pyspark", "tensorflow", "java"}
    assert cli.main(["check"]) == 0
    assert "pyspark" in capsys.readouterr().out


def test_no_java(monkeypatch, capsys):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(EnvironmentNotReady, match="no java on the PATH and no JAVA_HOME.*openjdk-17"):
        preflight.check_environment()
    assert cli.main(["check"]) == 1
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


@pytest.mark.parametrize("version", ["1.7.0_80", "11.0.2"])
def test_an_old_java(monkeypatch, tmp_path, version):
    monkeypatch.setenv("JAVA_HOME", java(tmp_path, version))
    monkeypatch.setattr(preflight, "version", lambda package: "4.0.0")
    with pytest.raises(EnvironmentNotReady, match=f"Java {version} .* is too old for the installed Spark"):
        preflight.check_environment()


def test_java_11_is_enough_for_spark_3_5(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", java(tmp_path, "11.0.2"))
    monkeypatch.setattr(preflight, "version", lambda package: "3.5.1")
    assert preflight.check_environment()["java"] == "11.0.2"


def test_a_java_home_without_java(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EnvironmentNotReady, match=f"JAVA_HOME={tmp_path} holds no Java that runs"):
        preflight.check_environment()


def test_all_that_is_missing_is_told_at_once(monkeypatch, tmp_path):
    def missing(package):
        raise preflight.PackageNotFoundError(package)

    monkeypatch.setattr(preflight, "version", missing)
    monkeypatch.setattr(sys, "version_info", (3, 9, 1))
    with pytest.raises(EnvironmentNotReady) as caught:
        preflight.check_environment()
    text = str(caught.value)
    assert "Python 3.9.1 is too old" in text
    assert "pyspark is not installed" in text
    assert 'pip install "tensorflowonspark[local]"' in text

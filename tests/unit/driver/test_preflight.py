import sys
from importlib.machinery import PathFinder

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


def test_what_can_be_imported_is_there_whatever_its_distribution_is_called(monkeypatch, tmp_path):
    for module, file, text in [
        ("pyspark", "version.py", '__version__: str = "4.0.7"'),
        ("tensorflow", "__init__.py", "from tensorflow.python import everything"),
    ]:
        (tmp_path / module).mkdir()
        (tmp_path / module / "__init__.py").touch()
        (tmp_path / module / file).write_text(text)
        monkeypatch.delitem(sys.modules, module, raising=False)
    wheel = tmp_path / "tf_nightly_cpu-2.22.0.dist-info"
    wheel.mkdir()
    (wheel / "METADATA").write_text("Metadata-Version: 2.1\nName: tf-nightly-cpu\nVersion: 2.22.0.dev1\n")
    (wheel / "top_level.txt").write_text("tensorflow\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "meta_path", [PathFinder])
    found = preflight.check_environment()
    assert (found["pyspark"], found["tensorflow"]) == ("4.0.7", "2.22.0.dev1")


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
    monkeypatch.setattr(preflight, "_version", lambda module: "4.0.0")
    with pytest.raises(EnvironmentNotReady, match=f"Java {version} .* is too old for the installed Spark"):
        preflight.check_environment()


def test_java_11_is_enough_for_spark_3_5(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", java(tmp_path, "11.0.2"))
    monkeypatch.setattr(preflight, "_version", lambda module: "3.5.1")
    assert preflight.check_environment()["java"] == "11.0.2"


def test_a_java_home_without_java(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EnvironmentNotReady, match=f"JAVA_HOME={tmp_path} holds no Java that runs"):
        preflight.check_environment()


def test_all_that_is_missing_is_told_at_once(monkeypatch, tmp_path):
    (tmp_path / "tensorflow").mkdir()  # as a folder of examples
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "meta_path", [PathFinder])
    for module in ("pyspark", "tensorflow"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(sys, "version_info", (3, 9, 1))
    with pytest.raises(EnvironmentNotReady) as caught:
        preflight.check_environment()
    text = str(caught.value)
    assert "Python 3.9.1 is too old" in text
    assert "pyspark can't be imported" in text
    assert 'pip install "tensorflowonspark[local]"' in text

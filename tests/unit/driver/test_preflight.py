import os
import re
import subprocess
import sys
import venv
from functools import cache
from importlib.machinery import PathFinder
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import tensorflowonspark
from tensorflowonspark import cli
from tensorflowonspark.driver import preflight
from tensorflowonspark.errors import RequirementError
from tensorflowonspark.keras import wheels


def java(directory, version):
    home = directory / "java"
    (home / "bin").mkdir(parents=True)
    script = home / "bin" / "java"
    script.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2020-01-01' >&2\n")
    script.chmod(0o755)
    return str(home)


def install_2x(site, version="2.2.5"):
    """Put a distribution into a site directory, as pip leaves TensorFlowOnSpark 2.x there."""
    package = site / "tensorflowonspark"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f'import logging\n\n__version__ = "{version}"\n')
    (package / "TFCluster.py").write_text("raise AssertionError('imported')\n")
    metadata = site / f"tensorflowonspark-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tensorflowonspark\nVersion: {version}\n")
    (metadata / "top_level.txt").write_text("tensorflowonspark\n")
    return site


@cache
def distributions(search_path):
    return packages_distributions()


@pytest.fixture(autouse=True)
def ready(monkeypatch, tmp_path_factory):
    """Spark's Python, a Java that starts at once, and one search for the distributions of a path."""
    monkeypatch.setattr(wheels, "packages_distributions", lambda: distributions(tuple(sys.path)))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("JAVA_HOME", java(tmp_path_factory.mktemp("ready"), "17.0.1"))


@pytest.fixture
def imported(monkeypatch):
    """Take the imports of `tfos check`, which last for seconds, for done."""
    facts = {"host": "h", "address": "", "python": "3", "versions": {}, "errors": {}, "gpus": 0, "fabric": None}
    facts |= {"shared_memory": None, "open_files": 0, "unreachable": "", "problems": [], "notes": []}
    monkeypatch.setattr("tensorflowonspark.cli.check.own_environment", lambda: facts)
    return facts


def test_an_importable_module_is_found_whatever_its_distribution_is_called(monkeypatch, tmp_path):
    for module, file, text in [
        ("pyspark", "version.py", '__version__: str = "4.0.7"'),
        ("tensorflow", "__init__.py", "from tensorflow.python import everything"),
        ("pyarrow", "__init__.py", '__version__ = "15.0.0"'),
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
    # The package importlib_metadata takes the search for distributions away from PathFinder.
    metadata = [each for each in sys.meta_path if type(each).__module__.startswith("importlib_metadata")]
    monkeypatch.setattr(sys, "meta_path", [PathFinder, *metadata])
    found = preflight.check_environment()
    assert (found["pyspark"], found["tensorflow"]) == ("4.0.7", "2.22.0.dev1")


@pytest.mark.usefixtures("imported")
def test_this_machine_is_ready(capsys):
    versions = preflight.check_environment()
    assert set(versions) == {"tensorflowonspark", "python", "pyspark", "tensorflow", "pyarrow", "java"}
    assert versions["tensorflowonspark"] == tensorflowonspark.__version__
    assert cli.main(["check"]) == 0
    assert f"pyspark             {versions['pyspark']}\n" in capsys.readouterr().out


def test_no_java(monkeypatch, capsys):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(RequirementError, match="no java on the PATH and no JAVA_HOME.*openjdk-17"):
        preflight.check_environment()
    assert cli.main(["check"]) == 1
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("version", "installed", "problem"),
    [
        ("1.7.0_80", "4.0.0", "too old for the installed Spark"),
        ("11.0.2", "4.0.0", "too old for the installed Spark"),
        ("11.0.2", "3.5.1", None),
        ("22.0.2", "3.5.1", None),
        ("23", "3.5.9", "too new for the installed Spark, 3.5.9, which starts on none after 22: .* 17"),
        ("25.0.3", "4.0.5", "too new for the installed Spark, 4.0.5, which starts on none after 22: .* 17"),
        ("25.0.3", "4.3.0", None),
        ("25.0.3", "4.4.0.dev1", None),
    ],
)
def test_javas_by_the_installed_spark(monkeypatch, tmp_path, version, installed, problem):
    monkeypatch.setenv("JAVA_HOME", java(tmp_path, version))
    monkeypatch.setattr(preflight, "_version", lambda module: installed)
    if problem is None:
        assert preflight.check_environment()["java"] == version
        return
    with pytest.raises(RequirementError, match=f"Java {version} .* is {problem}"):
        preflight.check_environment()


def test_a_java_home_without_java(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(RequirementError, match=f"JAVA_HOME={tmp_path} holds no Java that runs"):
        preflight.check_environment()


@pytest.mark.parametrize("line", [[], ["chekc"], ["check", "--all"]])
def test_a_wrong_command_line(line, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(line)
    assert "usage: tfos" in capsys.readouterr().err


def test_all_problems_are_reported_at_once(monkeypatch, tmp_path):
    (tmp_path / "tensorflow").mkdir()  # as a folder of examples
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "meta_path", [PathFinder])
    for module in ("pyspark", "tensorflow", "pyarrow"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(sys, "version_info", (3, 9, 1))
    with pytest.raises(RequirementError) as caught:
        preflight.check_environment()
    text = str(caught.value)
    assert "Python 3.9.1 is too old" in text
    assert "pyspark can't be imported" in text
    assert '-m pip install "pyspark>=3.5"' in text
    assert '-m pip install "tensorflow>=2.16"' in text


def test_a_pyarrow_that_refuses_the_installed_numpy(monkeypatch):
    versions = {"numpy": "1.26.4", "pyarrow": "26.0.1"}
    monkeypatch.setattr(preflight, "_version", lambda module: versions.get(module, "4.0.0"))
    with pytest.raises(RequirementError, match=r'pyarrow 26.0.1 refuses NumPy 1.26.4: .* install "pyarrow<26"'):
        preflight.check_environment()


@pytest.mark.deep
def test_2x_beside_this_release(monkeypatch, tmp_path, capsys):
    site = install_2x(tmp_path / "site")
    monkeypatch.setattr(sys, "path", [*sys.path, str(site)])
    assert cli.main(["check"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"TensorFlowOnSpark 2.2.5 is installed in {site} beside this release")
    assert line.endswith(f"take {site} off PYTHONPATH and --py-files")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))  # a directory of pip's own
    assert cli.main(["check"]) == 1
    assert f"run `{sys.executable} -m pip uninstall tensorflowonspark`, then run" in capsys.readouterr().err


@pytest.mark.deep
def test_2x_without_a_version_in_its_package(monkeypatch, tmp_path):
    site = install_2x(tmp_path, "1.4.4")
    (site / "tensorflowonspark" / "__init__.py").write_text("")
    monkeypatch.setattr(sys, "path", [*sys.path, str(site)])
    with pytest.raises(RequirementError, match="TensorFlowOnSpark 1.4.4 is installed in"):
        preflight.check_environment()


@pytest.mark.parametrize("variable", ["PYSPARK_PYTHON", "PATH"])
def test_2x_instead_of_this_release_in_the_python_of_sparks_workers(variable, monkeypatch, tmp_path, capsys):
    workers = tmp_path / "workers"
    venv.create(workers, with_pip=False)
    (site,) = workers.glob("lib/python3*/site-packages")
    install_2x(site)
    monkeypatch.delenv("PYTHONPATH", raising=False)  # which may have this release
    if variable == "PYSPARK_PYTHON":
        monkeypatch.setenv("PYSPARK_PYTHON", str(workers / "bin" / "python3"))
    else:
        monkeypatch.delenv("PYSPARK_PYTHON")
        monkeypatch.setenv("PATH", str(workers / "bin"), prepend=os.pathsep)
    assert cli.main(["check"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"TensorFlowOnSpark 2.2.5 is installed in {site} instead of this release")
    assert variable == "PATH" or "which is PYSPARK_PYTHON" in line
    assert line.endswith(f": run `{workers}/bin/python3 -m pip install .` in a clone of this release")


def test_2x_installed_by_pip_while_this_release_is_on_pythonpath(tmp_path):
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False)
    (site,) = environment.glob("lib/python3*/site-packages")
    install_2x(site)
    source = str(Path(tensorflowonspark.__file__).parent.parent)
    done = subprocess.run(
        [
            environment / "bin" / "python",
            "-c",
            "import sys, tensorflowonspark.cli as cli; sys.exit(cli.main(['check']))",
        ],
        check=False,
        env={**os.environ, "PYTHONPATH": source, "PYSPARK_PYTHON": str(environment / "bin" / "python")},
        capture_output=True,
        text=True,
    )
    lines = done.stderr.splitlines()
    assert done.returncode == 1
    assert f"TensorFlowOnSpark 2.2.5 is installed in {site} beside this release" in lines[0]
    assert sum("TensorFlowOnSpark 2.2.5" in line for line in lines) == 1


def test_a_python_that_exists_on_the_executors_only(monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", "./environment/bin/python")
    assert preflight.check_environment()


def _wheel(directory, name, version, module):
    """Make the metadata of an installed distribution."""
    metadata = directory / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (metadata / "top_level.txt").write_text(f"{module}\n")


@pytest.mark.deep
@pytest.mark.parametrize(
    ("module", "names"), [("tensorflow", ("tensorflow", "tensorflow-cpu")), ("keras", ("keras", "keras-nightly"))]
)
def test_two_wheels_of_a_library_in_one_directory(monkeypatch, tmp_path, module, names):
    _wheel(tmp_path / "both", names[0], "1.0", module)
    _wheel(tmp_path / "both", names[1], "1.1", module)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "both"), *sys.path])
    (clash,) = wheels.clashes()
    assert clash.startswith(f"{names[0]} 1.0 and {names[1]} 1.1 are installed into one directory: `")
    assert f"-m pip uninstall {names[0]} {names[1]}`, then install one of them" in clash
    with pytest.raises(RequirementError, match="are installed into one directory"):
        preflight.check_environment()


def test_wheels_of_a_library_in_two_directories(monkeypatch, tmp_path):
    _wheel(tmp_path / "first", "keras-nightly", "3.16.0", "keras")
    _wheel(tmp_path / "second", "keras", "3.15.1", "keras")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "second")])
    assert list(wheels.clashes()) == []


@pytest.mark.usefixtures("imported")
def test_tensorflow_under_another_name_is_shown(monkeypatch, capsys):
    monkeypatch.setattr("tensorflowonspark.cli.check.wheels_of", lambda module: {"tensorflow-cpu": "2.21.0"})
    assert cli.main(["check"]) == 0
    assert re.search(r"^tensorflow +2\.\d+\.\d+ \(tensorflow-cpu\)$", capsys.readouterr().out, re.MULTILINE)


def test_a_private_name_that_keras_lacks_is_a_problem(imported, capsys):
    imported["problems"].append("Keras 3.99.0 has no keras.src.gone: fit on several workers needs it")
    assert cli.main(["check"]) == 1
    assert "this machine: Keras 3.99.0 has no keras.src.gone: fit on several" in capsys.readouterr().err


@pytest.mark.usefixtures("imported")
def test_a_package_that_other_commands_lack_is_named(monkeypatch, capsys):
    monkeypatch.delattr(cli, "run", raising=False)
    monkeypatch.setitem(sys.modules, "tensorflowonspark.cli.run", None)
    assert cli.main(["run", "train.py"]) == 1
    assert "can't be imported: " in capsys.readouterr().err
    assert cli.main(["check"]) == 0

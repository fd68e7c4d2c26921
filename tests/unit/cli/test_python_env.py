"""The executors' environment, without a cluster."""

import io
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tensorflowonspark import storage
from tensorflowonspark.cli import main, python_env, spark
from tensorflowonspark.errors import SpecError
from tests.support.environments import make_venv

VARIABLES = ("MASTER", "SPARK_CONF_DIR", "SPARK_HOME", "SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS", "PYSPARK_PYTHON")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A virtual environment with one package."""
    return make_venv(tmp_path_factory.mktemp("environments") / "small")


@pytest.fixture
def venv(tmp_path):
    return make_venv(tmp_path / "venv")


@pytest.fixture
def place(tmp_path, monkeypatch, hadoop_free):
    """A directory with a script, and the URL of a cache."""
    monkeypatch.chdir(tmp_path)
    for name in (*VARIABLES, "HADOOP_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "train.py").write_text("pass\n")
    return f"file://{tmp_path}/cache"


def dry_run(capsys, *options, code=0):
    assert main(["run", "--dry-run", *map(str, options), "train.py"]) == code
    output = capsys.readouterr()
    return dict(re.split(r"  +", line, maxsplit=1) for line in output.out.splitlines()), output.err


def found(*options):
    """Return what an option of ``tfos run`` leads to."""
    from argparse import ArgumentParser

    parser = ArgumentParser()
    spark.add_spark_options(parser)
    python_env.add_environment_options(parser)
    given = parser.parse_args([*map(str, options)])
    submit = spark.submit_arguments(given, "train", 1)
    return python_env.find_environment(given, submit), submit


def test_an_environment_is_packed_once(small, place, capsys):
    options = ["--master", "yarn", "--python-env", small, "--env-cache", place]
    environment, submit = found(*options)
    environment.publish()
    assert re.search(
        rf"packing {small} \(\d+ MB\) into {environment.url}; later runs reuse it", capsys.readouterr().err
    )
    local = environment.url.removeprefix("file://")
    with tarfile.open(local) as archive:
        names = archive.getnames()
    assert "lib64" in names
    assert any(name.endswith("site-packages/only_here.py") for name in names)
    again, _ = found(*options)
    assert again == python_env.PythonEnvironment(environment.url)  # nothing to pack
    again.publish()
    assert not capsys.readouterr().err
    arguments = again.arguments([*submit, "--archives", "data.zip#data"])
    assert arguments[:2] == ["--archives", f"data.zip#data,{environment.url}#environment"]
    assert "spark.pyspark.python=./environment/bin/python" in arguments


def test_a_packed_environment_runs(small, place, tmp_path):
    environment, _ = found("--master", "yarn", "--python-env", small, "--env-cache", place)
    environment.publish()
    with tarfile.open(environment.url.removeprefix("file://")) as archive:
        archive.extractall(tmp_path / "environment")
    command = ["./environment/bin/python", "-c", "import only_here; print(only_here.VALUE)"]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout == "42\n", done.stderr


def test_one_that_is_published_meanwhile_stays(place):
    for text in ("one", "two"):
        storage.publish(f"{place}/a", lambda local, text=text: Path(local).write_text(text), replace=False)
    files, within = storage.file_system(place)
    assert files.cat(f"{within}/a") == b"one"
    assert len(files.ls(within)) == 1


def test_the_name_is_that_of_the_contents(small, venv, place):
    def url(path):
        return found("--master", "yarn", "--python-env", path, "--env-cache", place)[0].url

    first = url(venv)
    assert first == url(small) == url(venv)
    (record,) = venv.glob("lib/python3*/site-packages/*.dist-info/RECORD")
    record.write_text(record.read_text() + "other.py,,\n")
    assert url(venv) != first


def test_a_dry_run_shows_what_would_be_packed(small, place, capsys, tmp_path):
    lines, _ = dry_run(capsys, "--master", "yarn", "--python-env", small, "--env-cache", place)
    assert re.fullmatch(rf"{small} \(\d+ MB\) would be packed into {place}/\w{{16}}\.tar\.gz", lines["packed"])
    assert "#environment" in lines["Spark"]
    assert lines["Python"] == "./environment/bin/python"
    assert not (tmp_path / "cache").exists()
    options = ["--conf", "spark.hadoop.fs.defaultFS=memory://fs", "--python-env", small]
    assert "into memory://fs/.tfos/environments/" in dry_run(capsys, "--master", "yarn", *options)[0]["packed"]


def test_an_archive_is_passed_on(place, capsys, tmp_path):
    with tarfile.open(tmp_path / "env.tar.gz", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("bin/python"), io.BytesIO())
    url = f"file://{tmp_path}/env.tar.gz"
    lines, _ = dry_run(capsys, "--master", "k8s://h", "--python-env", url)
    assert f"--archives '{url}#environment'" in lines["Spark"]
    copied, _ = found("--master", "k8s://h", "--python-env", "env.tar.gz", "--env-cache", place)
    copied.publish()
    assert (tmp_path / copied.url.removeprefix("file://")).read_bytes() == (tmp_path / "env.tar.gz").read_bytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--master", "yarn", "--python-env", "missing"], "missing doesn't exist"),
        (["--master", "yarn", "--python-env", "train.py"], "train.py: expected a virtual or conda environment"),
        (["--master", "yarn", "--python-env", "file:///no/env.tar.gz"], "file:///no/env.tar.gz doesn't exist"),
        (["--master", "yarn", "--python-env", "file:///no/env"], "expected a packed environment, as URL.tar.gz"),
        (["--master", "local[2]", "--python-env", "venv"], "on local[2] the executors start the Python in"),
        (["--master", "yarn", "--python-env", "venv", "--conf", "spark.pyspark.python=p"], "both name the executors'"),
    ],
)
def test_what_can_not_be_right_is_refused(place, capsys, options, message):
    options = [*options, *([] if "file" in options[3] else ["--env-cache", place])]
    assert message in dry_run(capsys, *options, code=2)[1]


def test_a_cache_that_executors_reach_is_needed(small, place, capsys):
    assert "on Kubernetes --env-cache" in dry_run(capsys, "--master", "k8s://h", "--python-env", small, code=2)[1]
    assert "set HADOOP_CONF_DIR, or --env" in dry_run(capsys, "--master", "yarn", "--python-env", small, code=2)[1]


def test_another_version_of_python_is_refused(venv, place, capsys):
    (library,) = venv.glob("lib/python3*")
    library.rename(library.with_name("python3.7"))
    (venv / "lib/python3.1").symlink_to("python3.7")  # as conda makes
    error = dry_run(capsys, "--master", "yarn", "--python-env", venv, "--env-cache", place, code=2)[1]
    assert f"has python3.7, and the driver python3.{sys.version_info[1]}" in error


@pytest.mark.parametrize("kind", ["path", "hook", "link"])
def test_editable_installs_are_refused_by_name(venv, place, capsys, kind):
    (record,) = venv.glob("lib/python3*/site-packages/*.dist-info/RECORD")
    site = record.parent.parent
    if kind == "link":
        (site / "only-here.egg-link").write_text("/elsewhere\n.")
    else:
        (site / "__editable__.pth").write_text("/elsewhere\n" if kind == "path" else "import __editable___finder\n")
    if kind == "hook":
        (record.parent / "direct_url.json").write_text('{"url": "file:///elsewhere", "dir_info": {"editable": true}}')
    error = dry_run(capsys, "--master", "yarn", "--python-env", venv, "--env-cache", place, code=2)[1]
    assert {"path": "__editable__.pth", "hook": "only-here", "link": "only-here"}[kind] in error
    assert "install them from a wheel" in error


@pytest.mark.parametrize(
    "options", [["--python-env", "none"], ["--archives", "a.zip"], ["--conf", "spark.pyspark.python=p"]]
)
def test_auto_leaves_a_python_that_is_named(place, monkeypatch, small, options):
    monkeypatch.setattr(sys, "prefix", str(small))
    assert found("--master", "yarn", "--env-cache", place, *options)[0] is None
    assert found("--master", "local[2]", "--env-cache", place)[0] is None
    monkeypatch.setenv("PYSPARK_PYTHON", "p")
    assert found("--master", "yarn", "--env-cache", place)[0] is None


def test_auto_packs_the_running_environment_or_shows_why_not(place, monkeypatch, small, capsys):
    monkeypatch.setattr(sys, "prefix", str(small))
    assert found("--master", "yarn", "--env-cache", place)[0].source == small
    assert not capsys.readouterr().err
    assert found("--master", "k8s://h")[0] is None
    assert not capsys.readouterr().err, "the image has the environment"
    monkeypatch.setattr(python_env, "find_spec", lambda name: None)
    assert found("--master", "yarn", "--env-cache", place)[0] is None
    assert "ships no environment: " in (shown := capsys.readouterr().err)
    assert "needs venv-pack2: pip install 'tensorflowonspark[env]'" in shown
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    assert found("--master", "yarn", "--env-cache", place)[0] is None
    assert "is in no virtual or conda environment" in capsys.readouterr().err


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))


@pytest.mark.usefixtures("own_cache")
def test_an_archive_that_is_not_what_was_packed_is_no_python_of_executors(place, tmp_path):
    """Another's archive of the right name, there before, or in the place of ours."""
    archive = tmp_path / "given.tar.gz"
    archive.write_bytes(b"packed")
    options = ["--master", "yarn", "--python-env", archive, "--env-cache", place]
    environment, _ = found(*options)
    environment.publish()
    assert found(*options)[0].source is None
    Path(environment.url.removeprefix("file://")).write_bytes(b"another's")
    with pytest.raises(SpecError, match=r"has the checksum .*, and what was packed has .*--env-cache URL"):
        found(*options)


@pytest.mark.usefixtures("own_cache")
def test_an_archive_that_has_changed_since_it_was_packed_is_refused(small, place):
    environment, _ = found("--master", "yarn", "--python-env", small, "--env-cache", place)
    path = Path(environment.url.removeprefix("file://"))
    path.parent.mkdir()
    path.write_bytes(b"packed by another run of this user")
    environment.publish()
    path.write_bytes(b"another's")
    with pytest.raises(SpecError, match=r"has the checksum "):
        found("--master", "yarn", "--python-env", small, "--env-cache", place)


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_others_can_not_replace_an_archive(small, place, mode):
    environment, _ = found("--master", "yarn", "--python-env", small, "--env-cache", place)
    folder = Path(place.removeprefix("file://"))
    folder.mkdir()
    Path(environment.url.removeprefix("file://")).write_bytes(b"packed")
    folder.chmod(mode)
    if mode & 0o1000:
        assert found("--master", "yarn", "--python-env", small, "--env-cache", place)[0].source is None
        return
    with pytest.raises(SpecError, match=rf"other users can write to {folder}, and replace what is in it"):
        found("--master", "yarn", "--python-env", small, "--env-cache", place)

"""What the driver knows of a run: the program's file, and what git says of it."""

import functools
import hashlib
import importlib.util
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tensorflowonspark.driver import run_facts as facts_module
from tensorflowonspark.driver.run_facts import git_revision, program_file, run_facts
from tensorflowonspark.driver.script import read_script
from tensorflowonspark.ml.node_training import train
from tensorflowonspark.settings import ClusterSettings

pytestmark = pytest.mark.timeout(60)


def program(args, ctx):
    """Do nothing."""


class Callable:
    def __call__(self, args, ctx):
        """Do nothing."""


@functools.wraps(program)
def wrapped(*args):
    return program(*args)


@pytest.mark.parametrize("function", [program, lambda: None, Callable(), wrapped, functools.partial(program, 1)])
def test_the_file_of_a_function_is_that_of_its_module(function):
    assert program_file(function) == Path(__file__)


@pytest.mark.parametrize("name", ["typed", "__main__"])
def test_what_was_typed_has_no_file(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    assert program_file(eval("lambda: None", {"__name__": name})) is None


def test_a_module_in_an_archive_has_no_file(monkeypatch):
    monkeypatch.setitem(sys.modules, "packed", SimpleNamespace(__file__="/no/such/deps.zip/packed.py"))
    assert program_file(eval("lambda: None", {"__name__": "packed"})) is None


def test_the_program_of_an_estimator_is_what_python_runs(monkeypatch, tmp_path):
    (tmp_path / "job.py").touch()
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__file__=str(tmp_path / "job.py")))
    assert program_file(train) == tmp_path / "job.py"


def test_scripts_and_modules_are_their_own_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "package").mkdir()
    for name in ("train.py", "package/__init__.py", "package/__main__.py", "package/job.py"):
        (tmp_path / name).write_text("print(1)")
    assert program_file("train.py") == tmp_path / "train.py"
    assert program_file(tmp_path / "train.py") == tmp_path / "train.py"
    assert program_file(read_script("train.py", ["--password", "x"])) == tmp_path / "train.py"
    assert program_file(read_script("package", module=True)) == tmp_path / "package/__main__.py"
    assert program_file(read_script("package.job", module=True)) == tmp_path / "package/job.py"
    assert program_file(read_script("json.tool", module=True)) is None  # an installed one


def git(directory, *words):
    names = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")
    done = subprocess.run(["git", "-C", directory, *names, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def tree(tmp_path):
    """Return a work tree with a program and another file, and its revision."""
    directory = tmp_path / "tree"
    directory.mkdir()
    git(directory, "init", "-q")
    for name in ("train.py", "other.py"):
        (directory / name).write_text("print(1)")
    git(directory, "add", ".")
    git(directory, "commit", "-q", "-m", "begin")
    git(directory, "tag", "v1")
    return directory, git(directory, "rev-parse", "HEAD")


def test_the_revision_says_whether_there_are_changes(tree):
    directory, revision = tree
    assert git_revision(directory / "train.py") == revision
    (directory / "output.log").touch()  # as a training writes
    assert git_revision(directory / "train.py") == revision
    assert git_revision(directory / "output.log") == f"{revision}-dirty"  # which git does not have
    (directory / "other.py").write_text("print(2)")
    assert git_revision(directory / "train.py") == f"{revision}-dirty"


def test_without_a_revision_there_is_none(tmp_path, tree):
    (tmp_path / "alone.py").touch()
    assert git_revision(tmp_path / "alone.py") is None
    git(tmp_path, "init", "-q")
    assert git_revision(tmp_path / "alone.py") is None  # nothing is committed


def test_the_variables_of_a_hook_name_no_other_tree(tree, tmp_path, monkeypatch):
    directory, revision = tree
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert git_revision(directory / "train.py") == revision


def test_a_tree_that_nobody_may_write_is_read(tree):
    directory, revision = tree
    os.utime(directory / "train.py", (1, 1))  # so that git would write that it has looked
    index = (directory / ".git/index").read_bytes()
    for each in [directory / ".git", *(directory / ".git").rglob("*")]:
        each.chmod(each.stat().st_mode & ~0o222)
    assert git_revision(directory / "train.py") == revision
    assert (directory / ".git/index").read_bytes() == index
    for each in [directory / ".git", *(directory / ".git").rglob("*")]:
        each.chmod(each.stat().st_mode | stat.S_IWUSR)


def test_the_tree_runs_no_program_of_its_own(tree, tmp_path):
    directory, revision = tree
    git(directory, "config", "core.fsmonitor", f"touch {tmp_path}/ran; false")
    assert git_revision(directory / "train.py") == revision
    assert not (tmp_path / "ran").exists()


@pytest.mark.deep
@pytest.mark.parametrize("how", ["absent", "fails", "hangs"])
def test_a_git_that_does_not_answer_costs_two_seconds_at_most(tree, tmp_path, monkeypatch, how):
    directory, _ = tree
    folder, pid = tmp_path / "bin", tmp_path / "pid"
    folder.mkdir()
    if how != "absent":
        text = "exit 3" if how == "fails" else f"sleep 1000 & echo $! > {pid}; wait"
        (folder / "git").write_text(f"#!/bin/sh\n{text}\n")
        (folder / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/bin" if how == "hangs" else str(folder))
    began = time.monotonic()
    assert git_revision(directory / "train.py") is None
    assert time.monotonic() - began < 4
    if how == "hangs":  # nor does what it has started go on
        child = int(pid.read_text())
        for _ in range(100):
            if not Path(f"/proc/{child}").exists() or ") Z " in Path(f"/proc/{child}/stat").read_text():
                return
            time.sleep(0.05)
        pytest.fail(f"process {child} goes on")


def test_the_facts_have_no_value_of_an_argument_or_variable(tree, monkeypatch):
    directory, revision = tree
    script = read_script(directory / "train.py", ["--token", "hunter2"])
    settings = vars(ClusterSettings(num_workers=2, restarts=1, env={"KEY": "hunter2"}))
    found = run_facts(script, settings, SimpleNamespace(version="4.1.0"))
    assert "hunter2" not in repr(found)
    assert found["program"] == {
        "name": "train.py",
        "file": str(directory / "train.py"),
        "sha256": hashlib.sha256(b"print(1)").hexdigest(),
        "revision": revision,
    }
    assert found["settings"] == {"num_workers": 2, "restarts": 1}
    assert found["not_recorded"] == ["env"]
    assert found["versions"]["spark"] == "4.1.0"
    assert "java" not in found["versions"]  # as over Spark Connect


def test_a_file_that_can_not_be_read_has_no_checksum(tmp_path, monkeypatch):
    (tmp_path / "train.py").touch()

    def refuse(self):
        raise PermissionError(self)

    monkeypatch.setattr(facts_module.Path, "read_bytes", refuse)
    found = run_facts(tmp_path / "train.py", vars(ClusterSettings()), SimpleNamespace())
    assert "sha256" not in found["program"]


def test_a_program_that_is_loaded_from_a_path_has_that_file(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text("def train(args, ctx): pass")
    spec = importlib.util.spec_from_file_location("own", tmp_path / "own.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "own", module)
    assert program_file(module.train) == tmp_path / "own.py"

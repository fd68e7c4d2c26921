"""Processes are started from what is installed, whatever lies in the working directory."""

import os
import sys

import pytest

from tensorflowonspark import processes
from tensorflowonspark.driver.preflight import _environment
from tensorflowonspark.task import environment


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """A working directory with modules under the names of Python's own, which leave a file when they are imported."""
    for name in ("platform", "json"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return tmp_path / "imported"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no safe path")
def test_nothing_is_imported_from_the_working_directory(planted, monkeypatch):
    process, pipe = processes.start("platform", os.environ)
    with pipe:
        assert process.wait(30) == 0
    assert not planted.exists()
    monkeypatch.setattr(environment, "_IMPORTS", "import json, platform")
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    environment._imported()
    assert not planted.exists()
    (link := planted.with_name("python")).symlink_to(sys.executable)
    _environment(str(link))
    assert not planted.exists()

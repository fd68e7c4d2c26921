"""A benchmark at a small scale, with the contenders that need no environment of their own."""

import json
import subprocess
import sys

import pytest

from tests.support.paths import ROOT


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_comparison_with_peers_sees_every_row(tmp_path):
    results = tmp_path / "results.json"
    options = ["--parts", "ours,pyarrow", "--scale", "0.01", "--rounds", "1", "--results", str(results)]
    command = [sys.executable, "-m", "benchmarks.peers", *options]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    found = json.loads(results.read_text())
    assert found["rounds"].keys() == {"all_rows", "first_rows", "pyarrow, read anew", "pyarrow, kept"}
    assert found["not run"].keys() == {"ray", "streaming"}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_trainers_take_equal_steps_to_almost_equal_losses(tmp_path):
    results = tmp_path / "results.json"
    options = ["--parts", "ours,hand", "--models", "small", "--scale", "0.1", "--rounds", "1"]
    command = [sys.executable, "-m", "benchmarks.trainers", *options, "--results", str(results)]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    found = json.loads(results.read_text())["small"]["found"]
    losses = {name: rounds[0]["loss"] for name, rounds in found.items()}
    assert losses["ours"] == pytest.approx(losses["hand"], rel=0.05)

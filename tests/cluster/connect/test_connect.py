"""Estimator, model, verbs and `run` over Spark Connect, from a process that is no Spark application."""

import json
import signal
import subprocess
import sys
import tempfile

import pytest

from tests.support.connect import connect_server
from tests.support.paths import ROOT, SUPPORT
from tests.support.processes import our_processes
from tests.support.programs import wait_for


@pytest.fixture(scope="module")
def address():
    with tempfile.TemporaryDirectory() as scratch, connect_server(scratch) as url:
        yield url


def client(*arguments):
    command = [sys.executable, str(SUPPORT / "connect_client.py"), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_all_that_needs_no_context_in_a_session_that_refuses_what_databricks_does(address, tmp_path):
    process = client(address, tmp_path)
    output, _ = process.communicate(timeout=280)
    *_, refused, last = output.splitlines()
    assert last == "all is well", output
    errors = json.loads(refused.removeprefix("refused: "))
    page = (ROOT / "docs/deploy/databricks.md").read_text().partition("### Over Spark Connect")[2].partition("\n## ")[0]
    rows = dict(line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `"))
    said = {name: text.removeprefix("refused: ") for name, text in rows.items() if text != "works"}
    assert set(said) == set(errors)
    for name, text in said.items():
        assert text in errors[name], errors[name]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_settings_of_file_systems(address, tmp_path):
    process = client(address, tmp_path, "settings")
    output, _ = process.communicate(timeout=280)
    assert process.returncode == 0, output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "number"), [("run", signal.SIGINT), ("cluster", signal.SIGINT), ("cluster", signal.SIGKILL)]
)
def test_a_client_that_is_interrupted_or_vanishes_leaves_nothing(address, tmp_path, how, number):
    process = client(address, tmp_path, "wait", how)
    wait_for((tmp_path / "begun").exists, 60)
    assert our_processes()
    process.send_signal(number)
    process.wait(30)
    wait_for(lambda: not our_processes(), 45 if number == signal.SIGKILL else 20)

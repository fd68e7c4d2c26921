"""``tfos show``: what it finds at a path, and how it says that there is nothing."""

import json
import uuid
from functools import partial
from pathlib import Path

import fsspec
import pytest

from tensorflowonspark.cli import main
from tensorflowonspark.driver.dashboard.page import report_html, save_report
from tensorflowonspark.driver.metrics.metrics_store import MetricsStore
from tensorflowonspark.exports.writing import export
from tensorflowonspark.node.checkpoint.store import CheckpointStore
from tensorflowonspark.run_manifest import FORMAT


def text_of(**parts):
    return json.dumps({"format": FORMAT, "workers": 2, **parts})


@pytest.fixture(params=["local", "memory"])
def directory(request, tmp_path):
    return str(tmp_path) if request.param == "local" else f"memory://{uuid.uuid4().hex}"


def shown(capsys, *arguments):
    """Return exit code, output and errors of a command."""
    code = main(["show", *arguments])
    return code, *capsys.readouterr()


def save(directory, tmp_path, step, text):
    """Write a checkpoint with a manifest, or none."""
    local = tmp_path / f"local-{step}"
    local.mkdir()
    (local / "state").write_text("weights")
    if text is not None:
        (local / "manifest.json").write_text(text)
    return CheckpointStore(directory, keep=5).add(str(local), step, step // 10).name


def put(path, text):
    with fsspec.open(path, "w", auto_mkdir=True) as file:
        file.write(text)


def test_of_a_directory_the_newest_complete_checkpoint(directory, tmp_path, capsys):
    place = f"{directory}/checkpoints"
    first, second = (save(place, tmp_path, step, text_of(restarts=step)) for step in (10, 20))
    put(f"{place}/step-00000030-00000000/manifest.json", text_of(restarts=30))  # which has no marker
    code, out, err = shown(capsys, f"{place}/")
    assert (code, err) == (0, "")
    assert out.splitlines()[:2] == [f"{first}  epoch 1, step 10", f"{second}  epoch 2, step 20, the newest:"]
    assert "restarts  20\n" in out
    assert shown(capsys, f"{place}/{first}")[1] == "format    1\nworkers   2\nrestarts  10\n"
    assert json.loads(shown(capsys, "--json", place)[1]) == json.loads(text_of(restarts=20))


class Model:
    """A model whose file or directory a test plays."""


@pytest.mark.parametrize("name", ["model.keras", "model.h5", "model"])
def test_of_an_export(directory, name, capsys):
    place = f"{directory}/{name}"

    def write(_model, local):
        if "." in name:
            Path(local).write_bytes(b"\x89HDF")
        else:
            Path(local).mkdir()
            Path(local, "saved_model.pb").write_text("graph")

    def manifest(path):
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_text(text_of(seed=7))

    for _ in range(2):  # the second replaces the first
        export(Model(), place, True, None, write, manifest)
        code, out, _ = shown(capsys, place)
        assert (code, out) == (0, "format   1\nworkers  2\nseed     7\n")
    export(Model(), place, True, None, write)  # of a program that has no cluster
    code, _, err = shown(capsys, place)
    assert code
    assert place in err
    assert "manifest" in err


def test_of_a_report(directory, capsys):
    store = MetricsStore("train")
    store.manifest = {"format": FORMAT, "program": {"name": "</script><b>", "sha256": "1"}}
    save_report(f"{directory}/run.html", partial(report_html, store))
    code, out, _ = shown(capsys, f"{directory}/run.html")
    assert (code, out) == (0, "format          1\nprogram.name    </script><b>\nprogram.sha256  1\n")


def test_a_later_version_is_a_line_and_controls_are_left_out(tmp_path, capsys):
    (tmp_path / "manifest.json").write_text(text_of(format=FORMAT + 1, program={"name": "a\x1b]0;title\x07"}))
    code, out, _ = shown(capsys, str(tmp_path))
    assert code == 0
    assert out.splitlines()[0].startswith("the manifest is of a later version")
    assert "\x1b" not in out


def nothing(place, _tmp_path):
    put(f"{place}/notes.txt", "")
    return place


def older(place, tmp_path):
    save(place, tmp_path, 10, text_of())
    save(place, tmp_path, 20, None)
    return place


def incomplete(place, _tmp_path):
    put(f"{place}/step-00000030-00000000/state", "weights")
    return place


def damaged(place, tmp_path):
    return f"{place}/{save(place, tmp_path, 10, '{')}"


def misspelt(place, _tmp_path):
    put(f"{place}/checkpoints/notes.txt", "")
    return f"{place}/chekpoints"


@pytest.mark.parametrize(
    ("make", "code", "reason"),
    [
        (nothing, 2, "has no manifest: expected a directory of checkpoints of which one is complete"),
        (older, 2, "-[0-9a-f]{8} has no manifest: an earlier version of this package has written it"),
        (incomplete, 2, "has no manifest: expected a directory of checkpoints of which one is complete"),
        (damaged, 1, "the manifest of .*/step-00000010-[0-9a-f]{8} can't be read: it is neither JSON nor a report"),
        (misspelt, 2, r"there is no .*/chekpoints \(did you mean 'checkpoints'\?\)"),
        (lambda place, _: f"{place}/no/such/folder", 2, "there is no .*/no/such/folder"),
        (lambda *_: "ftpx://host/models", 1, "ftpx"),
    ],
)
def test_what_has_none_is_an_error_that_names_it(directory, tmp_path, capsys, make, code, reason):
    import re

    path = make(f"{directory}/place", tmp_path)
    found, out, err = shown(capsys, path)
    assert (found, out) == (code, "")
    assert re.search(reason, err), err
    assert err.count("\n") == 1


@pytest.mark.deep
def test_a_reader_that_has_seen_enough_is_no_error(tmp_path):
    import subprocess
    import sys

    (tmp_path / "manifest.json").write_text(text_of(versions={f"library-{n}": "1.0" for n in range(20_000)}))
    command = [sys.executable, "-c", "from tensorflowonspark.cli import main; main()", "show", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().startswith("format")
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(60) == 0

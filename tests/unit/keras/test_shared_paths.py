"""Models that several workers save: each path holds one whole, whoever saves there, and whatever else is there."""

import json
import os
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tensorflowonspark.keras import shared_paths


class Workers:
    """Workers whose model is a file or a directory with the worker's name in each file."""

    def __init__(self, monkeypatch):
        self.monkeypatch = monkeypatch
        self.during = lambda: None

    def save(self, worker, path, **options):
        cluster = {"cluster": {"worker": ["h:1", "h:2"]}, "task": {"type": "worker", "index": worker}}
        self.monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
        self.monkeypatch.setattr(shared_paths, "_own", {})  # of another process

        def save_model(model, filepath, overwrite=True, **kwargs):
            target = Path(filepath)
            parts = [target] if target.suffix else [target / "saved_model.pb", target / "variables" / "data"]
            for each in parts:
                each.parent.mkdir(parents=True, exist_ok=True)
                each.write_text(f"{model} {kwargs}")
            self.during()
            return str(target)

        module = ModuleType("tf_keras.src.saving.saving_api")
        module.save_model = module.save_weights = save_model
        shared_paths.save_whole(module)
        return module.save_model(worker, path, **options)


@pytest.fixture
def workers(monkeypatch):
    monkeypatch.setattr(shared_paths, "_logged", set())
    return Workers(monkeypatch)


@pytest.mark.parametrize("name", ["model.keras", "saved/model"])
@pytest.mark.parametrize(("first", "inner", "stays"), [(1, 0, 0), (0, 1, 0), (1, 1, 1)])
def test_the_chiefs_stays_of_those_that_save_at_the_same_time(workers, tmp_path, caplog, name, first, inner, stays):
    path = tmp_path / name

    def save_meanwhile():
        workers.during = lambda: None
        workers.save(inner, path)
        workers.monkeypatch.setattr(shared_paths, "_own", {})

    workers.during = save_meanwhile
    workers.save(first, path)
    files = [each for each in tmp_path.rglob("*") if each.is_file()]
    assert {each.read_text() for each in files} == {f"{stays} {{}}"}
    assert len(files) == (1 if path.suffix else 2)
    assert [record.getMessage().split(": ")[0] for record in caplog.records] == (
        [f"worker:1 and another worker save to {path}"] if first else []
    )


def test_no_model_is_lost(workers, tmp_path):
    """Not that of the only worker that saves, nor one with a path of its own, nor one that is saved later."""
    for worker, name in [(1, "alone.keras"), (0, "model-0.keras"), (1, "model-1.keras"), (0, "both.keras"),
                         (1, "both.keras")]:  # fmt: skip
        workers.save(worker, str(tmp_path / name), zipped=True)
    writers = {"alone.keras": 1, "model-0.keras": 0, "model-1.keras": 1, "both.keras": 1}
    found = {each.name: each.read_text() for each in tmp_path.iterdir()}
    assert found == {name: f"{worker} {{'zipped': True}}" for name, worker in writers.items()}


@pytest.mark.parametrize("ahead", [3600, -3600])
@pytest.mark.parametrize("another", [True, False])
def test_a_file_servers_clock_may_be_another(workers, monkeypatch, tmp_path, caplog, ahead, another):
    """The file is of an earlier run, or of another worker of this one."""
    now = time.time()
    monkeypatch.setattr(shared_paths, "_began", now - ahead - 60)
    monkeypatch.setattr(shared_paths, "time", SimpleNamespace(time=lambda: time.time() - ahead))
    path = tmp_path / "model.keras"
    path.touch()
    os.utime(path, (now, now - (30 if another else 90)))
    workers.save(1, path)
    assert bool(caplog.records) is another


def test_other_files_of_a_directory_stay(workers, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "notes.txt").write_text("mine")
    workers.save(1, tmp_path / "model")
    assert (tmp_path / "model" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("path", ["memory://bucket/model.keras", "question.keras"])
def test_what_keras_handles_itself_is_left_to_it(workers, tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    assert workers.save(1, path, overwrite=False) == str(Path(path))

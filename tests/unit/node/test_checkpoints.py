"""Checkpoints of a program that is one process: what is found again, whatever broke off the writing."""

import json
import os
import signal
import subprocess
import sys
import uuid
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

from tensorflowonspark import CheckpointError, SpecError
from tensorflowonspark.node.checkpoint import restoring
from tensorflowonspark.node.checkpoint.best import BestMetric
from tensorflowonspark.node.checkpoint.checkpoints import Checkpoints
from tensorflowonspark.node.checkpoint.position import ResumePosition
from tensorflowonspark.node.checkpoint.saving import SavingNode
from tensorflowonspark.node.checkpoint.store import CheckpointStore, SavedCheckpoint, _record_checksum, fetch_first
from tensorflowonspark.node.checkpoint.writer import SavePolicy
from tensorflowonspark.node.save_points import SavePoints
from tests.support.programs import wait_for


@pytest.fixture(params=["local", "memory"])
def directory(request, tmp_path):
    return str(tmp_path / "models" / "one") if request.param == "local" else f"memory://{uuid.uuid4().hex}/one"


# Where the directory is matters to the store alone.
in_memory = pytest.mark.parametrize("directory", ["memory"], indirect=True)


def checkpoints(directory, keep=3, *, is_chief=True, position=None, best=None, mode="auto"):
    """Return checkpoints that are complete when `save` returns, so that their directory can be looked at."""
    policy = SavePolicy(keep, BestMetric(best, mode), wait=True)
    return Checkpoints(directory, policy, SavingNode("worker:0", is_chief), position)


def files(directory):
    system, root = fsspec.core.url_to_fs(directory)
    return sorted(path[len(root) + 1 :] for path in system.find(root))


def played_feeds(first=0, saved_to=()):
    """Return what a checkpoint asks of a node's feeds."""
    return SimpleNamespace(
        first=first, current=first, saved_to=saved_to, arriving=None, fingerprint="", taken=lambda step, batch: None
    )


class Loop:
    """A training loop of one's own."""

    def __init__(self, units=2):
        import tensorflow as tf

        self.variable = tf.Variable(tf.zeros(units))
        self.state = tf.train.Checkpoint(variable=self.variable)

    def train(self, directory, steps, **settings):
        found = checkpoints(directory, **settings)
        first = found.restore(self.state)
        for step in range(first, steps):
            self.variable.assign_add(self.variable + 1)
            found.save(self.state, step + 1)
        return first, self.variable.numpy().tolist()


def test_a_loop_goes_on_where_it_left_off(directory):
    assert Loop().train(directory, 3) == (0, [7, 7])
    assert Loop().train(directory, 5) == (3, [31, 31])
    assert Loop().train(directory, 5) == (5, [31, 31])
    steps = [saved.step for saved in CheckpointStore(directory, 1).complete()]
    assert steps == [3, 4, 5]
    checkpoints(directory).clear()
    assert files(directory) == []
    assert Loop().train(directory, 1, keep=1) == (0, [1, 1])


def test_the_newest_is_the_one_that_was_written_last(directory):
    """Not the one of the most steps: another training may have begun anew."""
    loop = Loop()
    found = checkpoints(directory, keep=2)
    assert found.latest() is None
    for step in (100, 7, 7):
        found.save(loop.state, step, epoch=step // 5)
    assert [saved.step for saved in CheckpointStore(directory, 1).complete()] == [7, 7]
    assert (found.latest().step, found.latest().epoch) == (7, 1)


@pytest.mark.parametrize("damage", ["no list", "half a list", "a file is short", "a file is gone", "another list"])
def test_what_is_not_complete_is_not_there(directory, damage):
    first = Loop().train(directory, 2)
    system, root = fsspec.core.url_to_fs(directory)
    saved = CheckpointStore(directory, 1).latest()
    place = f"{root}/{saved.name}"
    data = next(name for name in saved.files if "data" in name)
    if damage == "no list":
        system.rm_file(f"{place}/complete.json")
    elif damage == "half a list":
        system.pipe_file(f"{place}/complete.json", system.cat_file(f"{place}/complete.json")[:-20])
    elif damage == "a file is short":
        system.pipe_file(f"{place}/{data}", b"")
    elif damage == "a file is gone":
        system.rm_file(f"{place}/{data}")
    else:
        system.pipe_file(f"{place}/complete.json", json.dumps({"of": "something else"}).encode())
    assert first == (0, [3, 3])
    assert Loop().train(directory, 2) == (1, [3, 3])
    assert saved.name not in {each.split("/")[0] for each in files(directory)}


def _flip(system, path):
    data = bytearray(system.cat_file(path))
    data[len(data) // 2] ^= 4
    system.pipe_file(path, bytes(data))


@pytest.mark.parametrize("harmed", ["state.data", "state.index", "complete.json"])
def test_a_checkpoint_with_a_flipped_bit_gives_way_to_the_one_before(directory, caplog, harmed):
    Loop(2000).train(directory, 3)
    system, root = fsspec.core.url_to_fs(directory)
    saved = CheckpointStore(directory, 1).latest()
    _flip(system, next(path for path in system.find(f"{root}/{saved.name}") if harmed in path))
    first, values = Loop(2000).train(directory, 4)
    assert (first, values[:2]) == (2, [15, 15])
    (warning,) = [each.getMessage() for each in caplog.records]
    assert f"the checkpoint {directory}/{saved.name} is damaged and skipped: " in warning
    assert harmed in warning
    assert saved.name not in {each.split("/")[0] for each in files(directory)}  # the next one has removed it


@pytest.mark.parametrize(("first_feed", "fed_again"), [(0, True), (2, False)])
def test_the_one_before_is_of_no_use_if_its_rows_are_not_fed_again(tmp_path, first_feed, fed_again):
    Loop().train(str(tmp_path), 3)
    saved = CheckpointStore(str(tmp_path), 1).latest()
    (tmp_path / saved.name / "state.index").write_bytes(b"damaged")
    found = checkpoints(str(tmp_path), position=ResumePosition(played_feeds(first_feed), None, workers=1))
    if fed_again:
        assert found.restore(Loop().state) == 2
        return
    words = f"{saved.name}; .* was written in feed 0, whose rows are not fed again in this restart: run the whole train"
    with pytest.raises(CheckpointError, match=words):
        found.restore(Loop().state)


@pytest.mark.parametrize(("first_feed", "saved_to"), [(0, "here"), (2, "elsewhere"), (2, "here")])
def test_a_restart_that_finds_nothing_although_its_feeds_begin_later_is_refused(tmp_path, first_feed, saved_to):
    position = ResumePosition(played_feeds(first_feed, (str(tmp_path / saved_to),)), None, workers=1)
    here = Checkpoints(str(tmp_path / "here"), SavePolicy(3), SavingNode("worker:0", host="b"), position)
    if first_feed and saved_to == "here":
        words = f"there is no checkpoint in {tmp_path}/here on b, and this restart begins with feed 2, in which one was"
        with pytest.raises(CheckpointError, match=words):
            here.restore(Loop().state)
    else:
        assert here.restore(Loop().state) == 0


@pytest.mark.parametrize(("saved_to", "refused"), [((), False), (("here", "best"), True)], ids=["later run", "restart"])
def test_a_loop_is_not_fed_again_what_one_of_its_directories_has(tmp_path, saved_to, refused):
    """A restart begins with the feed of the older checkpoint; what a later run feeds is the user's matter."""
    Loop().train(
        str(tmp_path),
        3,
        position=ResumePosition(played_feeds(first=1), SimpleNamespace(send=print, saves=SavePoints()), 1),
    )
    position = ResumePosition(played_feeds(saved_to=saved_to), None, workers=1)
    words = (
        "was written in feed 1, and this restart begins with feed 0, .* another directory is of that one .here, best."
    )
    with pytest.raises(CheckpointError, match=words) if refused else nullcontext():
        assert checkpoints(str(tmp_path), position=position).restore(Loop().state) == 3


def test_a_worker_that_does_not_see_the_chiefs_directory_is_named(tmp_path, monkeypatch):
    agreed = [("step-00000003-of-the-chief", True, None), ("", True, None)]
    monkeypatch.setattr(restoring, "combine", lambda call, own: agreed)
    words = "the chief restores .*/step-00000003-of-the-chief, and worker:1 finds no such checkpoint: give a direct"
    with pytest.raises(CheckpointError, match=words):
        blind = Checkpoints(str(tmp_path), SavePolicy(3), SavingNode("worker:1", is_chief=False))._restoring
        blind.fetch(True, str(tmp_path), [], blind.newest)


def test_what_a_later_version_adds_to_a_marker_is_passed_over(tmp_path):
    """A damaged checkpoint would be removed by the next one."""
    url = f"memory://{uuid.uuid4().hex}/one"
    (tmp_path / "state").write_text("weights")
    saved = CheckpointStore(url, 9).add(str(tmp_path), 1)
    system, root = fsspec.core.url_to_fs(url)
    marker = f"{root}/{saved.name}/complete.json"
    record = {**json.loads(system.cat_file(marker)), "added": {"later": 1}}
    record["crc32c"] = _record_checksum({name: each for name, each in record.items() if name != "crc32c"})
    system.pipe_file(marker, json.dumps(record).encode())
    assert CheckpointStore(url, 9).newest() == saved


def test_a_marker_that_names_what_is_not_its_own_is_skipped(tmp_path, caplog):
    """An object store has any name: the sizes of files that lead out of the directory would be right."""
    url = f"memory://{uuid.uuid4().hex}/one"
    (tmp_path / "state").write_text("weights")
    store = CheckpointStore(url, 9)
    first = store.add(str(tmp_path), 1)
    system, root = fsspec.core.url_to_fs(url)
    planted = {"name": {"name": first.name}, "step": {"step": "9"}, "up": {"files": {"../../../evil": 4}}}
    planted |= {"absolute": {"files": {"/evil": 4}}, "list": {"files": ["state"]}, "nested": None}
    saved_ones = [store.add(str(tmp_path), 2) for _ in planted]
    for saved, (why, change) in zip(saved_ones, planted.items(), strict=True):
        marker = f"{root}/{saved.name}/complete.json"
        record = {**json.loads(system.cat_file(marker)), **(change or {})}
        record["crc32c"] = _record_checksum({name: each for name, each in record.items() if name != "crc32c"})
        system.pipe_file(marker, json.dumps(record).encode() if change else b"[" * 100_000)
        for name in record["files"] if why in ("up", "absolute") else ():
            path = f"{root}/{saved.name}/{name}"
            system.store[path] = MemoryFile(system, path, b"evil")
    local = tmp_path / "1/2/3/copy"
    store = CheckpointStore(url, 9)
    assert fetch_first(str(local), lambda: (store, store.newest())) == (store, first)
    assert len(caplog.records) == len(planted)
    assert "lists a file named '../../../evil', which leads out of it" in caplog.text
    assert sorted(each.name for each in (tmp_path / "1").rglob("*") if each.is_file()) == ["state"]


def test_where_all_are_damaged_training_does_not_begin_anew(directory):
    Loop().train(directory, 2)
    system, root = fsspec.core.url_to_fs(directory)
    for saved in CheckpointStore(directory, 1).complete():
        _flip(system, f"{root}/{saved.name}/state.index")
    with pytest.raises(CheckpointError, match=r"step-0+1-\w+, step-0+2-\w+ are damaged, and no other"):
        Loop().train(directory, 3)


def test_checkpoints_of_versions_without_checksums_are_read(directory):
    Loop(2000).train(directory, 2)
    system, root = fsspec.core.url_to_fs(directory)
    for saved in CheckpointStore(directory, 1).complete():
        record = json.loads(system.cat_file(f"{root}/{saved.name}/complete.json"))
        del record["checksums"], record["crc32c"]
        system.pipe_file(f"{root}/{saved.name}/complete.json", json.dumps(record).encode())
    assert Loop(2000).train(directory, 2)[0] == 2
    _flip(system, next(path for path in system.find(f"{root}/{saved.name}") if "data" in path))
    with pytest.raises(CheckpointError, match=rf"{saved.name} is damaged: remove it, and training"):
        Loop(2000).train(directory, 3)


def test_a_reader_takes_the_next_one_if_its_own_is_surplus(tmp_path, monkeypatch):
    """As an evaluator does, while the chief goes on."""
    directory = str(tmp_path)
    writer, reader = Loop(), Loop()
    writer.train(directory, 1, keep=1)
    fetch = CheckpointStore.fetch

    def late(shelf, saved, local):
        monkeypatch.setattr(CheckpointStore, "fetch", fetch)
        writer.train(directory, 2, keep=1)
        return fetch(shelf, saved, local)

    monkeypatch.setattr(CheckpointStore, "fetch", late)
    assert checkpoints(directory, is_chief=False).restore(reader.state) == 2
    assert reader.variable.numpy().tolist() == [3, 3]


def test_only_the_chief_keeps_what_it_writes(directory):
    assert Loop().train(directory, 3, is_chief=False) == (0, [7, 7])
    assert files(directory) == []


def test_a_process_that_is_killed_while_it_uploads_leaves_the_one_before(tmp_path):
    directory, started = tmp_path / "models", tmp_path / "started"
    Loop().train(str(directory), 2)
    before = CheckpointStore(str(directory), 1).latest()
    program = f"""
import time
from pathlib import Path
from fsspec.implementations.local import LocalFileSystem
from tensorflowonspark.node.checkpoint.store import CheckpointStore

copy = LocalFileSystem.put_file

def slowly(self, *args, **settings):
    copy(self, *args, **settings)
    Path({str(started)!r}).touch()
    time.sleep(60)

LocalFileSystem.put_file = slowly
local = Path({str(tmp_path)!r}, "local")
local.mkdir()
for name in ("state.index", "state.data"):
    (local / name).write_text("x" * 1000)
CheckpointStore({str(directory)!r}, 3).add(str(local), 3)
"""
    process = subprocess.Popen([sys.executable, "-c", program])
    wait_for(started.exists, 30)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert len([name for name in os.listdir(directory) if "step-00000003" in name]) == 1
    assert CheckpointStore(str(directory), 1).latest() == before
    assert Loop().train(str(directory), 3) == (2, [7, 7])
    steps = [name.split("-")[1] for name in sorted(os.listdir(directory))]
    assert steps == ["00000001", "00000002", "00000003"]  # and the half one is gone


def test_a_file_system_without_renames(monkeypatch):
    """As object stores are: nothing is moved, not even by a copy."""
    for name in ("mv", "move", "rename", "cp_file", "copy"):
        monkeypatch.setattr(MemoryFileSystem, name, None)
    directory = f"memory://{uuid.uuid4().hex}/one"
    assert Loop().train(directory, 3) == (0, [7, 7])
    assert Loop().train(directory, 4) == (3, [15, 15])


def test_what_can_not_be_written_or_does_not_fit_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    refused = str(tmp_path / "file" / "models")
    for refuse in (checkpoints(refused).callback, lambda: CheckpointStore(refused, 1).add(str(tmp_path), 1)):
        with pytest.raises(
            CheckpointError, match=rf"could not be .* in {refused}: NotADirectoryError: .*; check that it is"
        ):
            refuse()
    with pytest.raises(CheckpointError, match=r"could not be listed .*/file: NotADirectoryError: .*/file is a file"):
        Loop().train(str(tmp_path / "file"), 1)
    directory = str(tmp_path / "models")
    Loop(2).train(directory, 1)
    with pytest.raises(
        CheckpointError, match=rf"{directory}/step-00000001-\w+ does not fit .*from the beginning \(.*\(2,\)"
    ):
        Loop(3).train(directory, 1)
    with pytest.raises(SpecError, match="keep=0: at least one checkpoint must be kept"):
        checkpoints(directory, keep=0)
    with pytest.raises(SpecError, match="a/b.*: expected the name of a file"):
        checkpoints(directory).path("a/b")
    with pytest.raises(SpecError, match="every=0: expected a number of steps"):
        checkpoints(directory).callback(every=0)
    with pytest.raises(SpecError, match="step=-1: expected the number of"):
        checkpoints(directory).save(Loop().state, -1)


@in_memory
def test_variables_that_are_made_later_get_their_values(directory):
    import tensorflow as tf

    Loop().train(directory, 3)
    state = tf.train.Checkpoint()
    assert checkpoints(directory).restore(state) == 3
    state.variable = tf.Variable([0.0, 0.0])
    assert state.variable.numpy().tolist() == [7, 7]


def network(units=4):
    import keras

    layers = [keras.layers.Dense(units), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
    model = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    return model


def fit(callbacks, epochs, model=None, **settings):
    """Fit on the same rows in the same order."""
    import keras

    keras.utils.set_random_seed(1)
    model = model or network()
    x = np.sin(np.arange(60.0).reshape(20, 3))
    history = model.fit(x, x.sum(1), epochs=epochs, batch_size=5, shuffle=False, verbose=0, callbacks=callbacks)
    return history.epoch, [np.asarray(each) for each in [*model.variables, *model.optimizer.variables]]


def assert_equal(one, other):
    for mine, theirs in zip(one, other, strict=True):
        np.testing.assert_array_equal(mine, theirs)


class Break:
    """Raises after some batches, as if the process ended."""

    def __new__(cls, batches):
        import keras

        class Breaking(keras.callbacks.Callback):
            seen = 0

            def on_train_batch_end(self, batch, logs=None):
                self.seen += 1
                if self.seen == batches:
                    raise ZeroDivisionError

        return Breaking()


@pytest.mark.deep
@in_memory
def test_fit_goes_on_where_it_left_off(directory):
    """Weights, optimizer, BatchNorm's statistics and Dropout's seeds are those of an unbroken run."""
    _, unbroken = fit([], 5)
    with pytest.raises(ZeroDivisionError):
        fit([checkpoints(directory).callback(), Break(10)], 5)
    model = network()
    epochs, variables = fit([callback := checkpoints(directory).callback()], 5, model)
    assert epochs == [0, 1, 2, 3, 4]  # of the whole training
    assert_equal(variables, unbroken)
    assert [saved.step for saved in CheckpointStore(directory, 1).complete()] == [12, 16, 20]
    assert fit([callback], 2, model)[0] == [0, 1]  # the program's own next fit begins at its first epoch
    assert fit([checkpoints(directory).callback(), Break(1)], 1)[0] == [0, 1]  # of that one, without a step


@pytest.mark.slow
@in_memory
def test_within_epochs_too(directory):
    with pytest.raises(ZeroDivisionError):
        fit([checkpoints(directory, keep=9).callback(every=3), Break(10)], 5)
    written = [(saved.step, saved.epoch) for saved in CheckpointStore(directory, 1).complete()]
    assert written == [(3, 0), (4, 1), (6, 1), (8, 2), (9, 2)]
    model = network()
    assert fit([checkpoints(directory).callback(every=3)], 5, model)[0] == [0, 1, 2, 3, 4]
    assert int(model.optimizer.iterations.numpy()) == 9 + 3 * 4


@pytest.mark.deep
@in_memory
def test_a_model_of_other_layers_is_refused(directory):
    import keras

    fit([checkpoints(directory).callback()], 1)
    with pytest.raises(CheckpointError, match="does not fit the program's model: .*\\(Received incompatible tensor"):
        fit([checkpoints(directory).callback()], 1, network(5))
    smaller = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4)])
    smaller.compile("adam", "mse")
    with pytest.raises(CheckpointError, match="does not fit the program's model"):
        fit([checkpoints(directory).callback()], 1, smaller)


@pytest.mark.slow
@in_memory
def test_the_callbacks_of_keras_write_to_a_directory_that_is_mirrored(directory):
    import keras

    def callbacks(found):
        return [
            keras.callbacks.ModelCheckpoint(found.path("best.keras"), "loss", save_best_only=True),
            keras.callbacks.ModelCheckpoint(found.path("after-{epoch}.weights.h5"), save_weights_only=True),
            keras.callbacks.BackupAndRestore(found.path("backup")),
        ]

    first = checkpoints(directory)
    with pytest.raises(ZeroDivisionError):
        fit([*callbacks(first), Mirroring(first), Break(10)], 5)
    names = {name.split("/")[0] for name in files(directory)}
    assert names == {"after-1.weights.h5", "after-2.weights.h5", "backup", "best.keras"}
    second = checkpoints(directory)
    epochs, _ = fit([*callbacks(second), Mirroring(second)], 5)
    assert epochs == [2, 3, 4]
    names = {name.split("/")[0] for name in files(directory)}
    assert names == {*(f"after-{number}.weights.h5" for number in range(1, 6)), "best.keras"}
    assert keras.models.load_model(checkpoints(directory).path("best.keras")).count_params() == network().count_params()


class Mirroring:
    def __new__(cls, found):
        import keras

        return keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: found.mirror(), on_train_end=lambda logs: found.mirror()
        )


@pytest.mark.deep
@in_memory
@pytest.mark.parametrize("place", [0, 1])
def test_the_callback_mirrors_too_and_after_all_others(directory, place):
    import keras

    found = checkpoints(directory)
    callbacks = [keras.callbacks.ModelCheckpoint(Path(found.path("last.keras")))]
    callbacks.insert(place, found.callback())
    fit(callbacks, 1)
    assert "last.keras" in files(directory)


@pytest.mark.parametrize(
    ("saved", "repeats", "expected"),
    [
        ({"workers": 2}, True, (3, 7)),
        ({"workers": 3}, True, (3, 0)),  # the rows of a step were others
        ({"workers": 2}, False, (3, 0)),  # a stream, or rows that came in the order of their arrival
        ({"workers": 2, "feed": 0}, True, (0, 0)),  # of a feed that was complete
    ],
)
def test_an_epoch_starts_again_where_its_steps_have_other_rows(saved, repeats, expected):
    feeds = SimpleNamespace(current=1, resume_at=lambda epoch, step: repeats)
    record = SavedCheckpoint("step", 1, 20, 3, {}, batch=7, **{"feed": 1, **saved})
    assert ResumePosition(feeds, None, workers=2).resume(record) == expected

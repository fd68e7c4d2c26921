"""Checkpoints that are written while the program goes on, as they are by default."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event, Thread

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from tensorflowonspark import CheckpointError, SpecError
from tensorflowonspark.exports.writing import export
from tensorflowonspark.messages import WaitsFor
from tensorflowonspark.node.checkpoint import parts as parts_module
from tensorflowonspark.node.checkpoint import saving as saving_module
from tensorflowonspark.node.checkpoint.checkpoints import Checkpoints
from tensorflowonspark.node.checkpoint.saving import SavingNode
from tensorflowonspark.node.checkpoint.store import CheckpointStore
from tensorflowonspark.node.checkpoint.writer import SavePolicy, Writers
from tensorflowonspark.node.status import ProgramWaits
from tests.support.programs import wait_for


class Store(LocalFileSystem):
    """A file system whose copies wait until they may begin, and fail if they shall."""

    protocol = "slow"
    may_copy, fails = Event(), False

    def put_file(self, *args, **settings):
        assert self.may_copy.wait(60)
        if Store.fails:
            raise OSError(28, "No space left on device")
        super().put_file(*args, **settings)


@pytest.fixture
def store(monkeypatch):
    fsspec.register_implementation("slow", Store, clobber=True)
    monkeypatch.setattr(Store, "may_copy", Event())
    monkeypatch.setattr(Store, "fails", False)
    return Store


@pytest.fixture
def checkpoints(store, tmp_path):
    found = Checkpoints(f"slow://{tmp_path}/kept", SavePolicy(max_failures=1), SavingNode("worker:0"))
    yield found
    store.may_copy.set()
    found._saving._writer.wait()


def state_of(value):
    import tensorflow as tf

    return tf.train.Checkpoint(value=tf.Variable(value))


def steps(tmp_path):
    return [saved.step for saved in CheckpointStore(str(tmp_path / "kept"), 1).complete()]


def test_the_program_goes_on_and_what_it_asks_for_waits(store, checkpoints, tmp_path):
    checkpoints.save(state := state_of(1.0), 1)
    state.value.assign(2.0)  # the copy has the former value
    assert steps(tmp_path) == []
    store.may_copy.set()
    assert checkpoints.latest().step == 1
    restored = state_of(0.0)
    assert checkpoints.restore(restored) == 1
    assert float(restored.value) == 1.0
    checkpoints.save(state, 2)
    checkpoints.close()
    assert steps(tmp_path) == [1, 2]


def test_what_is_written_is_the_state_of_the_moment(store, checkpoints, tmp_path):
    """From the second one on from a copy in memory, which the next steps leave as it is."""
    import keras
    import tensorflow as tf

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3), keras.layers.BatchNormalization()])
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    variables = [*model.variables, *model.optimizer.variables]
    store.may_copy.set()
    state = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    for step in range(1, 4):
        for each in variables:
            each.assign(tf.ones_like(each.value) * step)
        store.may_copy.clear()
        checkpoints.save(state, step)
        for each in variables:
            each.assign(tf.zeros_like(each.value))
        store.may_copy.set()
        assert checkpoints.restore(state) == step
        assert all((each.numpy() == step).all() for each in variables)
    names = [tf.train.list_variables(str(each / "state")) for each in (tmp_path / "kept").glob("step-*")]
    assert names[0] == names[1] == names[2]  # so that TensorFlow reads all three alike


def test_a_state_with_more_than_variables_is_written_at_once(store, checkpoints, tmp_path):
    """As one with a table of TensorFlow."""
    import tensorflow as tf

    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    state = tf.train.Checkpoint(value=tf.Variable(1.0), table=table)
    store.may_copy.set()
    for step in range(1, 4):
        table.insert(["a"], tf.constant([step], tf.int64))
        checkpoints.save(state, step)
    assert checkpoints.latest().step == 3
    table.insert(["a"], tf.constant([0], tf.int64))
    checkpoints.restore(state)
    assert table.lookup(tf.constant(["a"])).numpy() == [3]


def test_each_state_is_written_under_its_own_names(store, checkpoints):
    """Also if the same variables were saved before under others, or as many that exist no more."""
    import tensorflow as tf

    value = tf.Variable(0.0)
    store.may_copy.set()
    for step in range(1, 7):
        value.assign(float(step))
        names = {"weight" if step % 4 > 1 else "value": value}
        checkpoints.save(tf.train.Checkpoint(**names), step)
        restored = tf.train.Checkpoint(**{name: tf.Variable(0.0) for name in names})
        assert checkpoints.restore(restored) == step
        assert float(next(iter(restored._trackable_children().values()))) == step


def test_what_reads_one_directory_waits_for_all_that_the_program_saves_there(store, checkpoints, tmp_path):
    """By another object, and another name of the directory."""
    writers, policy = Writers(), SavePolicy(max_failures=1)

    def made(path):
        return Checkpoints(path, policy, SavingNode("worker:0"), writer=writers.of(path))

    made(f"slow://{tmp_path}/kept").save(state_of(1.0), 1)
    made(f"slow://{tmp_path}/other").save(state_of(5.0), 5)
    found = []
    reader = in_a_thread(lambda: found.append(made(f"slow://{tmp_path}/kept/").latest().step))
    reader.join(0.3)
    assert not found
    store.may_copy.set()
    reader.join(30)
    assert found == [1]
    writers.close()
    assert [each.step for each in CheckpointStore(str(tmp_path / "other"), 1).complete()] == [5]


def test_a_program_that_waits_for_a_store_does_not_hang(store, checkpoints):
    checkpoints.save(state_of(1.0), 1)
    found, waits = [], ProgramWaits(lambda: None)

    def look():
        wait_for(lambda: waits.status().waits_for is WaitsFor.STORAGE, 10)
        found.append(waits.status())
        store.may_copy.set()

    in_a_thread(look)
    checkpoints.latest()
    assert found


def test_a_directory_that_cant_be_written_is_an_error_at_the_first_save(store, tmp_path):
    (tmp_path / "kept").write_text("in the way")
    found = Checkpoints(f"slow://{tmp_path}/kept", SavePolicy(), SavingNode("worker:0"))
    with pytest.raises(CheckpointError, match=r"could not be written in .*kept"):
        found.save(state_of(1.0), 1)
    assert found.close() is None


def test_what_was_cleared_is_not_missed(store, checkpoints):
    store.may_copy.set()
    store.fails = True
    checkpoints.save(state_of(1.0), 1)
    checkpoints.clear()
    checkpoints.close()


def test_an_export_does_not_wait(store, checkpoints, tmp_path):
    import keras

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    checkpoints.save(state_of(1.0), 1)
    export(model, str(tmp_path / "model.keras"), is_chief=True, scratch=None)
    assert (tmp_path / "model.keras").exists()
    assert steps(tmp_path) == []


def test_one_is_under_way_at_a_time(store, checkpoints, tmp_path):
    checkpoints.save(state_of(1.0), 1)
    second = in_a_thread(lambda: checkpoints.save(state_of(2.0), 2))
    second.join(0.5)
    assert second.is_alive()
    store.may_copy.set()
    second.join(30)
    checkpoints.close()
    assert steps(tmp_path) == [1, 2]


def in_a_thread(function):
    thread = Thread(target=function, daemon=True)
    thread.start()
    return thread


def test_what_fails_is_a_warning_and_the_one_before_stays(store, checkpoints, tmp_path, caplog):
    store.may_copy.set()
    checkpoints.save(state_of(1.0), 1)
    assert checkpoints.latest().step == 1
    store.fails = True
    checkpoints.save(state_of(2.0), 2)
    assert checkpoints.latest().step == 1
    (warning,) = [each.getMessage() for each in caplog.records]
    assert "the checkpoint of step 2 was not written, and the one before stays the newest (1 in a row" in warning
    assert "No space left on device" in warning
    assert str(tmp_path) in warning
    store.fails = False
    checkpoints.save(state_of(3.0), 3)
    assert checkpoints.latest().step == 3


def test_too_many_failures_in_a_row_are_an_error(store, checkpoints):
    store.may_copy.set()
    store.fails = True
    checkpoints.save(state_of(1.0), 1)
    checkpoints.save(state_of(2.0), 2)
    with pytest.raises(CheckpointError, match="No space left on device"):
        checkpoints.save(state_of(3.0), 3)


def test_the_last_one_of_a_program_must_be_written(store, checkpoints):
    store.may_copy.set()
    store.fails = True
    checkpoints.save(state_of(1.0), 1)
    with pytest.raises(CheckpointError, match="No space left on device"):
        checkpoints.close()


@pytest.mark.parametrize("wait", [True, False])
def test_a_later_one_makes_good_for_what_failed(store, tmp_path, wait):
    writers = Writers()
    path, node = f"slow://{tmp_path}/kept", SavingNode("worker:0")
    store.may_copy.set()
    store.fails = True
    Checkpoints(path, SavePolicy(max_failures=1), node, writer=writers.of(path)).save(state_of(1.0), 1)
    writers.wait()
    store.fails = False
    Checkpoints(path, SavePolicy(wait=wait), node, writer=writers.of(path)).save(state_of(2.0), 2)
    writers.close()
    assert steps(tmp_path) == [2]


def test_a_number_of_failures_that_is_none():
    with pytest.raises(SpecError, match="max_failures=-1"):
        SavePolicy(max_failures=-1)


def test_nothing_is_left_of_the_copies_on_this_machine(store, tmp_path):
    (scratch := tmp_path / "scratch").mkdir()
    found = Checkpoints(f"slow://{tmp_path}/kept", SavePolicy(), SavingNode("worker:0", scratch=str(scratch)))
    store.may_copy.set()
    found.save(state_of(1.0), 1)
    store.fails = True
    found.save(state_of(2.0), 2)
    found.latest()
    assert list(scratch.iterdir()) == []


class Table:
    """An object that is divided among the workers, of which this one has a part."""

    name, is_divided = "table", True

    def shard_parts(self):
        yield "table/0", b"rows"


def shared(monkeypatch, outcomes):
    """Have the state be one of two workers', of which the other one's outcomes of saves come in turn."""
    monkeypatch.setattr(parts_module, "divided_objects", lambda _: [Table()])
    for module in (parts_module, sys.modules[Checkpoints.__module__]):
        monkeypatch.setattr(module, "is_shared", lambda _: True)
    for module in (parts_module, saving_module):
        monkeypatch.setattr(module, "combine", lambda call, value, merge=list: [value, outcomes(value)])
    monkeypatch.setattr(parts_module, "roles", lambda: ("worker:0", ["worker:0", "worker:1"]))


def test_the_chief_waits_for_the_parts_of_all_workers(store, checkpoints, tmp_path, monkeypatch):
    shared(monkeypatch, lambda value: "")
    store.may_copy.set()
    checkpoints._saving._is_seen = True
    checkpoints.save(state_of(1.0), 1)
    wait_for(lambda: list((tmp_path / "kept").glob("step-*/lists/*")), 10)
    assert steps(tmp_path) == []
    other = CheckpointStore(str(tmp_path / "kept"), 3)
    (name,) = os.listdir(tmp_path / "kept")
    other.add_parts(name, "worker:1", [("table/1", b"others")])
    assert checkpoints.latest().step == 1
    assert sorted(other.part_names(checkpoints.latest())) == ["table/0", "table/1"]


def test_parts_that_a_worker_could_not_write_end_the_wait_of_that_checkpoint_alone(
    store, checkpoints, tmp_path, monkeypatch, caplog
):
    lost = iter(["", "", "worker:1 on b: its disk is full", ""])
    shared(monkeypatch, lambda value: next(lost, ""))
    store.may_copy.set()
    checkpoints._saving._is_seen = True
    checkpoints.save(state_of(1.0), 1)
    checkpoints.save(state_of(2.0), 2)
    assert "worker:1 on b: its disk is full" in caplog.text
    wait_for(lambda: list((tmp_path / "kept").glob("step-00000002-*/lists/*")), 10)
    (name,) = (each.name for each in (tmp_path / "kept").glob("step-00000002-*"))
    CheckpointStore(str(tmp_path / "kept"), 3).add_parts(name, "worker:1", [("table/1", b"others")])
    assert checkpoints.latest().step == 2
    assert steps(tmp_path) == [2]


def test_parts_that_never_come_end_the_wait(store, checkpoints, tmp_path, monkeypatch, caplog):
    """So that a chief which waits for its last checkpoint meets the worker again that could not write them."""
    shared(monkeypatch, lambda value: "")
    monkeypatch.setattr(parts_module, "_PATIENCE_SECONDS", 0.5)
    store.may_copy.set()
    checkpoints._saving._is_seen = True
    checkpoints.save(state_of(1.0), 1)
    assert checkpoints.latest() is None
    assert "worker:1 has not written its parts of slow:" in caplog.text


@pytest.mark.slow
def test_a_process_that_is_killed_at_any_moment_leaves_a_whole_one(tmp_path):
    """Four processes, each killed while a checkpoint is written; each resumes at the newest whole one."""
    program = """
import sys, time
import tensorflow as tf
from fsspec.implementations.local import LocalFileSystem
from tensorflowonspark.node.checkpoint.checkpoints import Checkpoints
from tensorflowonspark.node.checkpoint.saving import SavingNode
from tensorflowonspark.node.checkpoint.writer import SavePolicy

copy = LocalFileSystem.put_file

def slowly(self, *args, **settings):
    time.sleep(0.05)
    copy(self, *args, **settings)

LocalFileSystem.put_file = slowly
value = tf.Variable(tf.zeros(1000))
state = tf.train.Checkpoint(value=value)
found = Checkpoints(sys.argv[1], SavePolicy(), SavingNode("worker:0"))
first = found.restore(state)
assert first == 0 or bool(tf.reduce_all(value == float(first)))
for step in range(first + 1, first + 100):
    value.assign(tf.fill([1000], float(step)))
    found.save(state, step)
    print(step, flush=True)
"""
    newest = 0
    for attempt in range(4):
        process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "kept")], stdout=subprocess.PIPE)
        for _ in range(2 + attempt):
            process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        found = steps(tmp_path)
        assert found, Path(tmp_path / "kept")
        assert found[-1] >= newest
        newest = found[-1]
    assert newest >= 4

"""Copies of checkpoints on two nodes, with their real servers and folders."""

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from tensorflowonspark import CheckpointError, SpecError, transport
from tensorflowonspark.config import ClusterConfig, ClusterSpec
from tensorflowonspark.messages import NodeEndpoint
from tensorflowonspark.node.checkpoint.checkpoints import Checkpoints
from tensorflowonspark.node.checkpoint.copies import Copies, is_newer
from tensorflowonspark.node.checkpoint.saving import SavingNode
from tensorflowonspark.node.checkpoint.store import CheckpointStore, SavedCheckpoint
from tensorflowonspark.node.checkpoint.writer import SavePolicy, Writers
from tensorflowonspark.node.copy_folder import PIECES, CopyHeader
from tensorflowonspark.node.feed.feed_server import FeedServer
from tensorflowonspark.node.setup import NodeSetup
from tensorflowonspark.run_files import new_run, remove_ended, run_directory

RUN = new_run()


class Nodes:
    """The servers of two nodes on hosts of their own; `of` is what one of them has of the copies in an attempt."""

    def __init__(self, folder):
        self.credentials = transport.new_credentials(tls=False, patience=2.0)
        self.setups = []
        for number in range(2):
            local = folder / f"node{number}"
            (local / "private").mkdir(parents=True)
            setup = NodeSetup(
                config=ClusterConfig(ClusterSpec(2), b"", run=RUN),
                number=number,
                host=f"127.0.0.{number + 1}",
                credentials=self.credentials,
                feed_socket=str(local / "private" / "feed"),
                local_directory=str(local / "private"),
                run_directory=str(run_directory(str(local), RUN)),
            )
            self.setups.append(setup)
        self.servers = [FeedServer(each, print) for each in self.setups]
        self.endpoints = tuple(
            NodeEndpoint(each.number, str(each.role), each.host, server.ready)
            for each, server in zip(self.setups, self.servers, strict=True)
        )

    def of(self, number, directory, attempt=0, hosts=1):
        setup = self.setups[number]
        setup = replace(setup, config=replace(setup.config, attempt=attempt))
        return Copies(SimpleNamespace(endpoints=lambda: self.endpoints), setup, str(directory), hosts)

    def files(self, number):
        return {each.name for each in Path(self.setups[number].run_directory).rglob("*") if each.is_file()}


@pytest.fixture
def nodes(tmp_path):
    found = Nodes(tmp_path)
    yield found
    for server in found.servers:
        server._local.close()
        server._remote.close()


@pytest.fixture
def training(nodes, tmp_path):
    """Return the checkpoints of the chief in an attempt, and a state with a value."""

    def make(attempt=0, node=0, writers=None, **policy):
        directory = str(tmp_path / "kept")
        policy = SavePolicy(**{"keep": 2, "copies": 1, "wait": True, **policy})  # the directory vanishes after a save
        writer = (writers or Writers()).of(directory, nodes.of(node, directory, attempt))
        return Checkpoints(directory, policy, SavingNode("worker:0"), writer=writer)

    return make


def state_of(value=0.0):
    import tensorflow as tf

    return tf.train.Checkpoint(value=tf.Variable(value))


def lose(path):
    path.rename(f"{path}-away")
    path.write_text("no directory")


def find(path):
    path.unlink()
    Path(f"{path}-away").rename(path)


def test_a_restart_on_the_other_host_goes_on_from_the_copy_and_gives_it_to_the_directory(training, nodes, tmp_path):
    first = training()
    first.save(state_of(1.0), 1)
    lose(tmp_path / "kept")
    first.save(state_of(2.0), 2)  # a warning, since there are copies
    assert nodes.files(1) == nodes.files(0) == {"complete.json", "state.index", "state.data-00000-of-00001"}
    Path(nodes.setups[0].run_directory).rename(tmp_path / "host that has vanished")
    again, state = training(attempt=1, node=1), state_of()
    again.callback()  # which would be refused by a directory that can't be written
    assert again.restore(state) == 2
    assert float(state.value) == 2.0
    find(tmp_path / "kept")
    third = training(attempt=2, node=1)
    assert third.restore(state) == 2
    assert [each.step for each in CheckpointStore(str(tmp_path / "kept"), 1).complete()] == [1, 2]
    third.save(state_of(3.0), 3)
    assert [each.number for each in CheckpointStore(str(tmp_path / "kept"), 1).complete()] == [1, 2]
    assert len(list(Path(nodes.setups[1].run_directory).glob("*/step-*"))) == 1  # the newest


def test_all_objects_for_one_directory_have_the_same_copies(training, nodes, tmp_path):
    """Each copy takes the place of the one before, by whichever it was written; and none may do without."""
    writers = Writers()
    for step in range(1, 4):
        training(writers=writers).save(state_of(float(step)), step)
        for each in nodes.setups:
            (copy,) = Path(each.run_directory).glob("*/step-*")
            assert copy.name.startswith(f"step-{step:08d}")
    lose(tmp_path / "kept")
    training(writers=writers).save(state_of(4.0), 4)
    words = (
        "ctx.checkpoint.*kept', copies=0.: this program has called it with copies=1 for the directory, and a restart"
    )
    with pytest.raises(SpecError, match=words):
        writers.of(str(tmp_path / "kept"))
    other = nodes.of(0, tmp_path / "other", hosts=2)
    assert writers.of(str(tmp_path / "other"), other).copies is other
    state = state_of()
    assert training(attempt=1).restore(state) == 4
    assert float(state.value) == 4.0


def test_more_than_max_failures_in_a_row_are_an_error_and_so_is_the_last(training, tmp_path):
    checkpoints = training(max_failures=1)
    checkpoints.save(state_of(), 1)
    lose(tmp_path / "kept")
    checkpoints.save(state_of(), 2)
    with pytest.raises(CheckpointError, match=r"could not be listed in .*kept: NotADirectoryError: .*kept is a file"):
        checkpoints.save(state_of(), 3)
    with pytest.raises(CheckpointError):
        checkpoints.close()


@pytest.mark.parametrize("harm", ["a byte", "a file", "the node"])
def test_copies_that_cant_be_used_give_way_to_the_directory(training, nodes, tmp_path, caplog, harm):
    checkpoints = training()
    checkpoints.save(state_of(1.0), 1)
    lose(tmp_path / "kept")
    checkpoints.save(state_of(2.0), 2)
    find(tmp_path / "kept")
    Path(nodes.setups[0].run_directory).rename(tmp_path / "host that has vanished")
    (data,) = Path(nodes.setups[1].run_directory).rglob("state.data-*")
    if harm == "a byte":
        data.write_bytes(bytes([data.read_bytes()[0] ^ 1]) + data.read_bytes()[1:])
    elif harm == "a file":
        data.unlink()
    else:
        nodes.servers[1]._remote.close()
    state = state_of()
    assert training(attempt=1).restore(state) == 1
    assert float(state.value) == 1.0
    words = {"the node": "copies on worker:1 on 127.0.0.2 can't be used: "}.get(harm, " is damaged and skipped: ")
    assert words in caplog.text


def test_a_host_without_copies_is_a_warning(training, nodes, tmp_path, caplog):
    nodes.servers[1]._remote.close()
    checkpoints = training()
    for step in (1, 2):
        checkpoints.save(state_of(), step)
    assert "has not all of its copies (copies=1): worker:1 on 127.0.0.2: " in caplog.text
    assert len(CheckpointStore(str(tmp_path / "kept"), 1).complete()) == 2
    assert len(list(Path(nodes.setups[0].run_directory).glob("*/step-*"))) == 1


def test_what_was_left_behind_is_not_taken_for_newer(training, nodes, tmp_path):
    """Two restarts after a host was away, on which steps were kept that others have done again since."""
    training().save(state_of(1.0), 1)
    lose(tmp_path / "kept")
    kept = training()
    for step in (2, 3):
        kept.save(state_of(-1.0), step)
    find(tmp_path / "kept")
    away = [Path(each.run_directory) for each in nodes.setups]
    for each in away:
        each.rename(f"{each}-away")
    again, state = training(attempt=1), state_of()
    assert again.restore(state) == 1
    again.save(state_of(2.0), 2)
    for each in away:
        shutil.rmtree(each)
        Path(f"{each}-away").rename(each)
    assert training(attempt=2).restore(state) == 2
    assert float(state.value) == 2.0


@pytest.mark.parametrize(
    ("copy", "saved", "newer"),
    [
        ({"number": 4}, None, True),
        ({"number": 4}, {"number": 5}, False),
        ({"number": 5}, {"number": 5}, True),  # the same one: its copy is nearer
        ({"number": 4, "attempt": 1}, {"number": 5}, True),
        ({"number": 9}, {"number": 5, "attempt": 1}, False),
        ({"number": 4}, {"number": 7, "attempt": 3, "run": "one before"}, True),
    ],
)
def test_which_is_newer(copy, saved, newer):
    one, other = (
        each and SavedCheckpoint(**{"name": "step", "step": 1, "epoch": 0, "files": {}, "run": RUN, **each})
        for each in (copy, saved)
    )
    assert is_newer(one, other) is newer


@pytest.mark.parametrize("attempt", [0, 1])
def test_a_directory_that_is_cleared_has_no_copies(training, nodes, attempt):
    again = training()
    again.save(state_of(1.0), 1)
    if attempt:
        again = training(attempt)
    again.clear()
    assert nodes.files(0) == nodes.files(1) == set()
    assert again.restore(state_of()) == 0


def test_a_first_attempt_has_what_is_in_the_directory_alone(training, tmp_path):
    """The user may have removed it since."""
    training().save(state_of(1.0), 1)
    (tmp_path / "kept").rename(tmp_path / "removed")
    assert training().restore(state_of()) == 0


@pytest.mark.parametrize("path", ["../../evil", "/evil", "step/../../../evil"])
def test_a_file_that_leads_out_of_the_folder_is_refused(nodes, tmp_path, path):
    node = nodes.endpoints[1]
    connection = transport.connect((node.host, node.ready.feed_port), nodes.credentials, identity=node.ready.identity)
    stream = connection.put(CopyHeader("key"), PIECES)
    stream.write(pa.record_batch([[path], pa.array([b"evil"], pa.large_binary())], schema=PIECES))
    with pytest.raises(transport.ConnectionLost, match="lead"):
        stream.finish()
    connection.close()
    assert not list(tmp_path.rglob("evil"))


def test_one_host_is_a_warning_once(nodes, tmp_path, caplog):
    nodes.endpoints = nodes.endpoints[:1]
    copies = nodes.of(0, tmp_path)
    for _ in range(2):
        copies.keep(SavedCheckpoint("step-00000001-0a0a0a0a", 0, 1, 0, {}), str(tmp_path / "none"))
    with caplog.at_level(logging.WARNING):
        assert caplog.text.count("copies=1: worker:0 has copies of checkpoints on 1 host(s) in place of 2") == 1


@pytest.mark.parametrize("copies", [-1, "1", 1.0])
def test_a_number_of_copies_that_cant_be_right(copies):
    with pytest.raises(SpecError, match=r"copies=.*: expected a number of other hosts with copies, from 0 on"):
        SavePolicy(copies=copies)


def test_runs_that_have_ended_leave_nothing(tmp_path):
    mine, other, ended, of_another_driver = new_run(), new_run(), new_run(), "0a0a0a0a0a0a-1"
    for each in (mine, other, ended, of_another_driver):
        run_directory(str(tmp_path), each).mkdir()
    remove_ended(str(tmp_path), mine, [other])
    left = {each.name for each in tmp_path.iterdir()}
    assert left == {run_directory("", each).name for each in (mine, other, of_another_driver)}


def test_what_a_folder_lists(nodes, tmp_path):
    copies = nodes.of(0, tmp_path, attempt=1)
    parts = dict(copies.keep_parts("step-00000001-0a0a0a0a", [("table/0", b"rows"), ("table/1", b"")]))
    assert parts == {"table/0": b"rows", "table/1": b""}
    found = copies.find()
    assert {path: size for path, (size, _) in found.items() if "parts" in path} == {
        "step-00000001-0a0a0a0a/parts/table/0": 4,
        "step-00000001-0a0a0a0a/parts/table/1": 0,
    }
    (listed,) = Path(nodes.setups[1].run_directory).rglob("worker-0.json")
    assert json.loads(listed.read_text()).keys() == {"parts/table/0", "parts/table/1"}

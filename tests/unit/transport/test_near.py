"""Which nodes a process takes for near, and what a node does with rows that are for another one."""

import errno
import os
import re
import socket
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa
import pytest

from tensorflowonspark import transport
from tensorflowonspark.config import ClusterConfig, ClusterSpec
from tensorflowonspark.errors import FeedError
from tensorflowonspark.messages import NodeEndpoint, NodeReady
from tensorflowonspark.node.feed.feed_server import FeedServer
from tensorflowonspark.node.setup import NodeSetup
from tensorflowonspark.processes import place
from tensorflowonspark.task.feeder import FeedSpec, choose, feed_partition
from tests.support import hosts, ladder
from tests.support.paths import open_files

BATCH = pa.record_batch({"x": [1, 2, 3]})


@pytest.fixture(params=[False, True], ids=["token", "tls"])
def credentials(request):
    return transport.new_credentials(tls=request.param)


@contextmanager
def node_at(directory, number, credentials):
    """Run the server of a node; yield its endpoint, and its reports to the driver."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    config = ClusterConfig(ClusterSpec(num_workers=2), b"")
    setup = NodeSetup(
        config, number, "127.0.0.1", credentials, feed_socket=str(directory / "feed"), local_directory=str(directory)
    )
    reports = []
    server = FeedServer(setup, reports.append)
    yield NodeEndpoint(number, str(setup.role), setup.host, server.ready), reports
    server._local.close()
    server._remote.close()


def feed(endpoint, credentials):
    return feed_partition(endpoint, credentials, FeedSpec(0), 0, 0, iter([BATCH]))


def moved(endpoint, **fields):
    return replace(endpoint, ready=replace(endpoint.ready, **fields))


def test_rows_go_to_the_node_that_they_are_for_although_another_one_has_its_path(tmp_path, credentials):
    """As in two containers with equal pids and paths: only one of the nodes is here."""
    with (
        node_at(tmp_path / "here", 0, credentials) as (here, had),
        node_at(tmp_path / "there", 1, credentials) as (there, got),
    ):
        same_path = moved(there, feed_socket=here.ready.feed_socket, place="another container")
        assert choose((same_path, here), 0) is choose((same_path, here), 1) is here
        assert choose((same_path,), 0) is same_path
        (part,) = feed(same_path, credentials)
        assert part.number == 1
        assert not had
        assert got[-1].parts[0].rows == 3


@pytest.mark.parametrize("way", ["unix", "tcp"])
def test_a_node_refuses_what_is_for_another_one_by_name(tmp_path, credentials, way):
    with (
        node_at(tmp_path / "here", 0, credentials) as (here, had),
        node_at(tmp_path / "there", 1, credentials) as (there, _),
    ):
        ready = here.ready
        wrong = {"feed_socket": ready.feed_socket} if way == "unix" else {"feed_port": ready.feed_port, "place": ""}
        endpoint = moved(there, **wrong)
        names = r"worker:0 on 127.0.0.1 \(\w{16}\) got a call for worker:1 on 127.0.0.1 \(\w{16}\)"
        with pytest.raises(FeedError, match=f"partition 0: worker:1 on 127.0.0.1 did not take its rows .*: {names}"):
            feed(endpoint, credentials)
        with transport.connect_local(endpoint.ready, endpoint.host, credentials) as connection:
            assert connection.is_local is (way == "unix")
            with pytest.raises(transport.ConnectionLost, match=names):
                list(connection.exchange("header", BATCH.schema).request(BATCH))
            with pytest.raises(transport.ConnectionLost, match=names):
                connection.channel().receive()
        nobody = moved(here, identity="")
        with pytest.raises(FeedError, match="got a call for the driver"):
            feed(nobody, credentials)
        assert not had
        assert feed(here, credentials)


def listening(path):
    server = socket.socket(socket.AF_UNIX)
    directory = os.open(path.parent, os.O_DIRECTORY)
    server.bind(f"/proc/self/fd/{directory}/{path.name}")
    os.close(directory)
    server.listen()
    return server


def refuse(*_, **__):
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


@pytest.mark.parametrize(
    ("what", "is_near"),
    [
        ("as it is", True),
        ("a long path", True),
        ("another place", False),
        ("no place", False),
        ("no socket", False),
        ("a file", False),
        ("a link to a socket", False),
        ("a linked directory", False),
        ("open to others", False),
        ("another user's", False),
        ("no directory", False),
        ("not to be entered", False),
    ],
)
def test_what_is_near(tmp_path, monkeypatch, what, is_near):
    directory = tmp_path / ("long" * 40 if what == "a long path" else "private")
    directory.mkdir(mode=0o700)
    path = directory / "feed"
    server = None if what in ("no socket", "a file") else listening(path)
    if what == "a file":
        path.touch()
    elif what == "a link to a socket":
        path.rename(directory / "other")
        path.symlink_to("other")
    elif what == "a linked directory":
        (tmp_path / "link").symlink_to(directory)
        path = tmp_path / "link" / "feed"
    elif what == "open to others":
        directory.chmod(0o711)
    elif what == "another user's":
        monkeypatch.setattr(os, "geteuid", lambda: directory.stat().st_uid + 1)
    elif what == "no directory":
        path = tmp_path / "away" / "feed"
    elif what == "not to be entered":
        monkeypatch.setattr(os, "open", refuse)
    node = NodeReady(str(path), 1, "n", {"another place": f"{place()}0", "no place": ""}.get(what, place()))
    before = open_files(tmp_path)
    with transport.near_socket(node) as found:
        assert bool(found) is is_near
        if found:
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(found)
    monkeypatch.undo()
    assert open_files(tmp_path) == before
    if server:
        server.close()


@pytest.mark.parametrize(("options", "words"), [([], ""), (["--mount-proc"], r"[\w-]{36} pid:\[\d+\]")])
def test_a_place_is_that_of_a_pid_namespace(options, words):
    """And there is none where /proc shows the pids of another namespace."""
    if problem := hosts.what_is_missing():
        ladder.skip(problem)
    program = "from tensorflowonspark.processes import place; print(place())"
    command = ["unshare", "--pid", "--fork", *options, sys.executable, "-c", program]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    assert re.fullmatch(words, found)
    assert place() not in ("", found)

import os
import socket
from pathlib import Path

import pytest

from tensorflowonspark.supervisor.forkserver.server_directory import SERVER, USERS, ServerDirectory


def test_it_is_this_users_alone(tmp_path):
    path = ServerDirectory.of(str(tmp_path), 7)
    ServerDirectory(path, make=True).close()
    assert path.stat().st_mode & 0o777 == 0o700


def test_executors_with_equal_pids_in_two_containers_have_one_each(tmp_path, monkeypatch):
    """They may share a local directory, as a hostPath volume of Kubernetes."""
    here = ServerDirectory.of(str(tmp_path), 7)
    monkeypatch.setattr("tensorflowonspark.supervisor.forkserver.server_directory.place", lambda: "another container")
    assert ServerDirectory.of(str(tmp_path), 7) not in (here, ServerDirectory.of(str(tmp_path), 8))


def test_what_others_may_look_into_is_refused(tmp_path):
    path = tmp_path / "open"
    path.mkdir(mode=0o755)
    with pytest.raises(PermissionError, match="not private to this user"):
        ServerDirectory(path, make=True)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory to somebody else")
def test_another_users_is_refused(tmp_path):
    path = tmp_path / "foreign"
    path.mkdir(mode=0o700)
    os.chown(path, 12345, 12345)
    with pytest.raises(PermissionError, match="not private to this user"):
        ServerDirectory(path, make=True)


def test_a_link_to_somewhere_else_is_refused(tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(OSError, match="Not a directory|Too many levels"):
        ServerDirectory(tmp_path / "link", make=True)


def test_nothing_is_made_for_who_only_looks(tmp_path):
    with pytest.raises(FileNotFoundError):
        ServerDirectory(tmp_path / "home", make=False)
    assert list(tmp_path.iterdir()) == []


def test_a_socket_below_a_deep_directory(tmp_path):
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    home = ServerDirectory(ServerDirectory.of(str(deep), 7), make=True)
    with home.listen() as listener, home.connect(1.0) as connection, listener.accept()[0] as accepted:
        connection.sendall(b"word")
        assert accepted.recv(4) == b"word"
    home.close()


def test_a_socket_that_was_left_behind_is_replaced(tmp_path):
    home = ServerDirectory(ServerDirectory.of(str(tmp_path), 7), make=True)
    home.listen().close()
    with pytest.raises(ConnectionRefusedError):
        home.connect(1.0)
    home.hide()
    with home.listen(), home.connect(1.0) as connection:
        assert connection.family == socket.AF_UNIX
    home.close()


def test_one_has_a_lock_or_several_share_it(tmp_path):
    home = ServerDirectory(ServerDirectory.of(str(tmp_path), 7), make=True)
    first = home.lock(SERVER)
    assert first is not None
    assert home.lock(SERVER) is None
    os.close(first)
    shares = [home.share(USERS), home.share(USERS)]
    assert home.lock(USERS) is None
    for share in shares:
        os.close(share)
    again = home.lock(USERS)
    assert again is not None
    os.close(again)
    home.close()


def test_it_is_removed_unless_another_has_taken_its_place(tmp_path):
    path = ServerDirectory.of(str(tmp_path), 7)
    home = ServerDirectory(path, make=True)
    assert home.exists()
    path.rename(tmp_path / "away")
    assert not home.exists()
    path.mkdir()
    home.remove()
    assert path.exists()
    home.close()
    ServerDirectory(Path(tmp_path / "away"), make=False).remove()
    assert not (tmp_path / "away").exists()

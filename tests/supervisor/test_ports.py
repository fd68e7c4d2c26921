import errno
import socket

import pytest

from tensorflowonspark.supervisor.ports import reserve_port


def test_nobody_else_gets_a_reserved_port():
    with reserve_port() as reservation:
        port = reservation.getsockname()[1]
        with socket.socket() as other, pytest.raises(OSError, match="in use") as caught:
            other.bind(("127.0.0.1", port))
        assert caught.value.errno == errno.EADDRINUSE


def test_searches_for_a_free_port_do_not_find_it():
    with reserve_port() as reservation:
        found = {reserve_port().getsockname()[1] for _ in range(200)}
        assert reservation.getsockname()[1] not in found


def test_connections_go_to_the_one_that_listens():
    with reserve_port() as reservation, socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind(("127.0.0.1", reservation.getsockname()[1]))
        server.listen()
        for _ in range(20):
            with socket.create_connection(server.getsockname(), timeout=5):
                server.accept()[0].close()

"""Whether packets of all sizes arrive at an address, where the process there ends the connection."""

import socket
from threading import Thread

import pytest

from tensorflowonspark.transport.reach import _SMALL, why_unreached


@pytest.mark.parametrize("read", [0, 4, len(_SMALL)])
def test_a_process_that_ends_the_connection_has_been_reached(read):
    """Large packets that find it closed are never acknowledged: a reset answers them."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def end_all():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:  # the test has ended
                    return
                with connection:
                    connection.recv(read)

        thread = Thread(target=end_all, daemon=True)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert {why_unreached(address, 1.0) for _ in range(20)} == {""}
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)

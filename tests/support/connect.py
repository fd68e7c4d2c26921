"""A Spark application that serves Spark Connect, as a process of its own."""

import subprocess
import sys
from contextlib import contextmanager

from tests.support.paths import SUPPORT
from tests.support.standalone import unused_port


@contextmanager
def connect_server(scratch):
    """Yield the URL of a server, whose files are in a directory."""
    port = unused_port()
    command = [sys.executable, str(SUPPORT / "connect_server.py"), str(port), str(scratch)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout.readline() == "up\n"
        yield f"sc://127.0.0.1:{port}"
        server.stdin.close()
        server.wait(30)

"""Standard error and logs that nobody reads: no thread that serves others waits for a reader.

The table of all blocking writes is in docs/architecture/control.md.
"""

import io
import logging
import os
import signal
import subprocess
import sys
from contextlib import suppress
from threading import Thread

import pytest

from tensorflowonspark.driver.dashboard.snapshots import Snapshots
from tensorflowonspark.supervisor.supervisor import Supervisor
from tensorflowonspark.terminal import CONSOLE
from tensorflowonspark.transport.server import _text_for_peer


@pytest.fixture
def full():
    """A pipe without room, of which the reading end is drained at the end."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, bytes(4096))
    os.set_blocking(writing, True)
    with io.FileIO(reading) as unread:
        yield writing
        os.set_blocking(reading, False)
        while not CONSOLE.drain():
            unread.read(1 << 20)


def failing_call():
    """Serve a call of another process that fails, of which it waits for the error."""
    _text_for_peer(KeyError("column"))


def failing_dashboard():
    """Answer a page whose state can't be made, and close it with the cluster."""
    shown = Snapshots(dict)
    shown.answer("")
    shown.close()


def unknown_message():
    """Receive, as a supervisor, a message that it does not know."""
    Supervisor.__new__(Supervisor)._on_message("node", "unknown")


@pytest.mark.parametrize("act", [failing_call, failing_dashboard, unknown_message])
def test_what_serves_others_does_not_wait_for_a_log_that_nobody_reads(full, act):
    logger = logging.getLogger("tensorflowonspark")
    with open(full, "w") as file:
        handler = logging.StreamHandler(file)
        logger.addHandler(handler)
        try:
            thread = Thread(target=act, daemon=True)
            thread.start()
            thread.join(10)
            assert not thread.is_alive()
        finally:
            logger.removeHandler(handler)


def test_a_signal_ends_a_command_whose_standard_error_nobody_reads(full):
    program = (
        "import os, signal\n"
        "from tensorflowonspark.cli.signals import Signalled, ended_by_signals\n"
        "try:\n"
        "    with ended_by_signals('all ends'):\n"
        "        signal.raise_signal(signal.SIGTERM)\n"
        "except Signalled as ended:\n"
        "    os._exit(ended.number)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stderr=full) as process:
        os.close(full)
        try:
            assert process.wait(30) == signal.SIGTERM
        finally:
            process.kill()

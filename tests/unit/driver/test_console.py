import io
import logging
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from tensorflowonspark.config import ClusterSpec
from tensorflowonspark.driver.console import parse_level, parse_show
from tensorflowonspark.errors import SpecError
from tensorflowonspark.messages import Progress
from tensorflowonspark.terminal import CONSOLE, Unblocked, Writer, printable
from tests.support.monitors import console_of
from tests.support.paths import ROOT
from tests.support.programs import wait_for


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def no_logging(monkeypatch):
    monkeypatch.setattr(logging.Logger, "hasHandlers", lambda self: False)


@pytest.mark.usefixtures("no_logging")
def test_without_logging_lines_go_to_the_stream_with_the_nodes_name():
    stream = io.StringIO()
    watcher = console_of(stream=stream)
    watcher.show("worker:1", ("one", "two"))
    watcher.close()
    assert stream.getvalue() == "[worker:1] one\n[worker:1] two\n"


@pytest.mark.usefixtures("no_logging")
@pytest.mark.parametrize(
    "control",
    ["\x1b[2J", "\x1b[1A\x1b[2K", "\x1b]0;title\x07", "\x1b]52;c;cGF5\x1b\\", "\x1bP+q\x1b\\", "\x1bc", "\x9b2J",
     "\x08", "\x07", "\x1b[6n", "\x1b[?1049h", "\x1b(0"],
)  # fmt: skip
def test_no_control_of_a_terminal_passes_but_colours(control):
    stream = Terminal()
    watcher = console_of(stream=stream)
    watcher.show("worker:1", (f"\x1b[1;31mred\x1b[0m{control}, and\tmore",))
    watcher.close()
    assert "[worker:1] \x1b[1;31mred\x1b[0m, and\tmore\n" in stream.getvalue()
    assert printable(f"{control}é") == "é"


@pytest.mark.usefixtures("no_logging")
@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_only_a_terminal_gets_colours(kind):
    stream = kind()
    watcher = console_of(bar=False, stream=stream)
    watcher.show("worker:1", ("\x1b[32mgreen\x1b[0m",))
    watcher.close()
    assert stream.getvalue() == ("[worker:1] \x1b[32mgreen\x1b[0m\n" if kind is Terminal else "[worker:1] green\n")


def test_with_logging_they_are_records_at_their_level(caplog):
    caplog.set_level(logging.INFO, "tensorflowonspark")
    watcher = console_of(stream=io.StringIO())
    watcher.show("ps:0", ("WARNING:root:careful",))
    watcher.close()
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.WARNING, "[ps:0] WARNING:root:careful")


def test_whose_output_is_shown():
    spec = ClusterSpec(num_workers=2, chief=True)
    assert [parse_show(each, spec) for each in ("all", "chief", "none")] == [None, "chief:0", "none"]
    assert parse_show("worker:1", spec) == "worker:1"
    with pytest.raises(
        SpecError, match="show='worker:2': expected all, chief, none or one of chief:0, worker:0, worker:1"
    ):
        parse_show("worker:2", spec)


def test_the_bar_follows_one_node_through_its_epochs():
    stream = Terminal()
    watcher = console_of(stream=stream)
    for epoch in range(2):
        for step in (1, 10):
            watcher.progress("worker:0", Progress(epoch, step, 10, step))
            watcher.progress("worker:1", Progress(epoch, 3, 10, 3))
            CONSOLE.drain()
    watcher.close()
    text = stream.getvalue()
    assert "epoch 1" in text
    assert "epoch 2" in text
    assert "10/10" in text
    assert "3/10" not in text


def test_no_bar_where_there_is_no_terminal():
    stream = io.StringIO()
    watcher = console_of(stream=stream)
    watcher.progress("worker:0", Progress(0, 1, 2, 1))
    watcher.close()
    assert stream.getvalue() == ""


def test_levels():
    assert parse_level("Warning") == parse_level(30) == 30
    with pytest.raises(ValueError, match="log_level='LOUD'"):
        parse_level("LOUD")


@pytest.mark.deep
def test_lines_that_nobody_reads_are_dropped_and_counted(caplog):
    reading, writing = os.pipe()
    console = Writer(characters=10_000)
    with open(reading, "rb") as reader, open(writing, "wb", buffering=0) as writer:
        begin = time.monotonic()
        lines = [b"%06d" % number + b"." * 93 + b"\n" for number in range(2000)]
        for line in lines:
            console.put(partial(writer.write, line), lambda: iter([writer]), 1, len(line))
        assert not console.drain()
        assert time.monotonic() - begin < 10
        came = b""
        while lines[-1] not in came:
            came += os.read(reader.fileno(), 1 << 16)
        assert console.drain()
    shown = came.splitlines(keepends=True)
    assert shown == lines[: len(shown) - 100] + lines[-100:]  # the first that fit into the pipe, and the last ones
    assert f"{len(lines) - len(shown)} lines of the nodes' output are left out here" in caplog.text


def test_what_is_no_text_stays_when_lines_are_dropped():
    """As the progress bar, which else would wait for its turn for ever."""
    reading, writing = os.pipe()
    console, drawn = Writer(characters=1000), []
    with open(reading, "rb") as reader, open(writing, "wb", buffering=0) as writer:
        console.put(partial(writer.write, b"." * (1 << 16)), lambda: iter([writer]))  # which fills the pipe
        for _ in range(20):
            console.put(partial(drawn.append, 1), lambda: iter([writer]))
            console.put(partial(writer.write, b"line\n" * 100), lambda: iter([writer]), 1, 500)
        while not console.drain():
            os.read(reader.fileno(), 1 << 16)
    assert len(drawn) == 20


def test_no_line_is_lost_where_somebody_reads_slowly():
    console = Writer(characters=1000)
    shown = []

    def show(number):
        time.sleep(0.002)
        shown.append(number)

    for number in range(500):
        console.put(partial(show, number), lines=1, size=100)
    assert console.drain()
    assert shown == list(range(500))


def test_the_thread_of_an_idle_writer_ends_until_the_next_write():
    writer, done = Writer(idle_seconds=0.01), []
    for number in range(2):
        writer.put(partial(done.append, number))
        wait_for(lambda: writer._thread is None, 5)
    assert done == [0, 1]


_UNREAD = """
import pickle, sys, time
sys.path.insert(0, {path!r})
from tests.support.backend import cluster_on
from tests.support.scripted import ScriptedBackend, returns
from tensorflowonspark.messages import Lines, Progress, TrainingTotals

def prints(node):
    for number in range(3000):
        node.send(Lines(("x" * 1000,)))
        node.send(TrainingTotals(progress=Progress(0, number, 3000, 1)))
    returns(7)(node)

if {logging}:
    import logging
    logging.basicConfig()
with cluster_on(ScriptedBackend(prints)) as cluster:
    results = cluster.join()
print(results, flush=True)
"""


@pytest.mark.deep
@pytest.mark.parametrize("with_logging", [False, True], ids=["a terminal", "a pipe and logging"])
def test_a_terminal_that_nobody_reads_stops_nothing(tmp_path, with_logging):
    script = tmp_path / "driver.py"
    script.write_text(_UNREAD.format(path=str(ROOT), logging=with_logging))
    terminal, ours = os.pipe() if with_logging else os.openpty()
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, stderr=ours, text=True) as driver:
        try:
            out, _ = driver.communicate(timeout=60)
        finally:
            driver.kill()
    os.close(terminal)
    os.close(ours)
    assert out == "{'worker:0': 7}\n"
    assert driver.returncode == 0


@pytest.mark.deep
@pytest.mark.parametrize(("piece", "pause"), [(1000, 0), (4096, 0.15)], ids=["in parts", "slowly"])
def test_a_line_that_a_terminal_takes_in_parts_or_slowly_arrives_whole(piece, pause):
    """Its reader may take longer for one text than a reader that has stopped is waited for."""
    terminal, ours = os.openpty()
    with os.fdopen(ours, "w") as file:
        console = Writer()
        unblocked = Unblocked(file, console)
        line = "x" * 40_000 + "\n"
        console.put(partial(unblocked.write, line), lambda: iter([file]), 1, len(line))
        with ThreadPoolExecutor(1) as pool:
            drained = pool.submit(console.drain)
            came = b""
            while not came.endswith(b"\n"):
                came += os.read(terminal, piece)
                time.sleep(pause)
            assert drained.result()
        assert came.decode().rstrip() == line.rstrip()
    os.close(terminal)

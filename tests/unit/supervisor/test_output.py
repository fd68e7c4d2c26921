import logging
import os
import time
from contextlib import suppress

import pytest

from tensorflowonspark.supervisor.output import Output, level_of
from tensorflowonspark.terminal import CONSOLE


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("Epoch 1/5", logging.INFO),
        ("I am a sentence", logging.INFO),
        ("E = mc2", logging.INFO),
        ("WARNING:tensorflow:careful", logging.WARNING),
        ("ERROR:root:bad", logging.ERROR),
        ("I0000 00:00:1795226816.3 2905 port.cc:153] oneDNN custom operations are on.", logging.DEBUG),
        ("E0000 00:00:1795226816.3 2905 x.cc:1] real trouble", logging.ERROR),
        ("2026-01-01 12:00:00.123456: W tensorflow/core/x.cc:1] slow", logging.WARNING),
        ("E0000 00:00:1795228426.0 6126 cuda_platform.cc:52] failed call to cuInit: no", logging.DEBUG),
    ],
)
def test_levels_of_lines(line, level):
    assert level_of(line) == level


def read(data, level=logging.INFO, pieces=1):
    reading, writing = os.pipe()
    passed = []
    output = Output(reading, name="worker:0", level=level, echo=False, on_lines=passed.extend)
    size = -(-len(data) // pieces)
    for start in range(0, len(data), size):
        os.write(writing, data[start : start + size])
    os.close(writing)
    return output.tail(5), passed


@pytest.mark.parametrize("pieces", [1, 2, 7])
def test_lines_arrive_whole_however_they_were_written(pieces):
    tail, passed = read("first\nsecond ü\nlast without an end".encode(), pieces=pieces)
    assert passed == ["first", "second ü", "last without an end"]
    assert tail == "\n".join(passed)


def test_a_bar_that_redraws_itself_is_shown_as_it_was_last():
    assert read(b"1/3\r2/3\r3/3 done\r\n")[1] == ["3/3 done"]


def test_lines_below_the_level_are_kept_for_errors_only():
    tail, passed = read(b"quiet\nWARNING:root:loud\n", level=logging.WARNING)
    assert passed == ["WARNING:root:loud"]
    assert "quiet" in tail


def test_what_is_no_text_and_has_no_end_does_no_harm():
    _, passed = read(b"\xff\xfe" * 100_000)
    assert sum(map(len, passed)) == 200_000


def test_the_tail_which_errors_show_has_no_colours():
    reading, writing = os.pipe()
    os.write(writing, b"\x1b[1m64/64\x1b[0m\n")
    os.close(writing)
    passed = []
    output = Output(reading, name="worker:0", level=0, echo=False, on_lines=passed.extend)
    assert output.tail(10) == "64/64"
    assert passed == ["\x1b[1m64/64\x1b[0m"]  # a terminal shows them


def test_the_tail_is_bounded():
    tail, passed = read(b"x\n" * 1000)
    assert len(passed) == 1000
    assert len(tail.splitlines()) == 100


@pytest.mark.slow
def test_a_log_that_nobody_reads_stops_nothing(monkeypatch):
    unread, writing = os.pipe()
    with open(unread, "rb"), open(writing, "w") as log:
        monkeypatch.setattr("sys.stderr", log)
        reading, node = os.pipe()
        passed = []
        output = Output(reading, name="worker:0", level=logging.INFO, echo=True, on_lines=passed.extend)
        lines = [f"{number:06}{'.' * 90}" for number in range(30_000)]
        with open(node, "w") as file:
            file.write("\n".join(lines))
        output.tail(30)
        assert passed == lines
        os.set_blocking(unread, False)
        while not CONSOLE.drain():
            with suppress(BlockingIOError):
                os.read(unread, 1 << 20)


def test_settling_waits_for_a_slow_receiver_of_lines():
    reading, writing = os.pipe()
    passed = []

    def receive(lines):
        time.sleep(0.3)
        passed.extend(lines)

    output = Output(reading, name="worker:0", level=logging.INFO, echo=False, on_lines=receive)
    os.write(writing, b"one\ntwo\n")
    output.settle(10.0)
    assert passed == ["one", "two"]
    os.write(writing, b"three\n")
    began = time.monotonic()
    output.settle(0.05)  # no longer than asked for
    assert time.monotonic() - began < 0.29
    os.close(writing)
    output.tail(5)
    output.settle(10.0)  # after the end
    assert passed == ["one", "two", "three"]

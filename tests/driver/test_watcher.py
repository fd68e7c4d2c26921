import io
import logging

import pytest

from tensorflowonspark.driver.watcher import Watcher, parse_level
from tensorflowonspark.messages import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def no_logging(monkeypatch):
    monkeypatch.setattr(logging.Logger, "hasHandlers", lambda self: False)


@pytest.mark.usefixtures("no_logging")
def test_without_logging_lines_go_to_the_stream_with_the_nodes_name():
    stream = io.StringIO()
    Watcher(stream=stream).show("worker:1", ("one", "two"))
    assert stream.getvalue() == "[worker:1] one\n[worker:1] two\n"


def test_with_logging_they_are_records_at_their_level(caplog):
    caplog.set_level(logging.INFO, "tensorflowonspark")
    Watcher(stream=io.StringIO()).show("ps:0", ("WARNING:root:careful",))
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.WARNING, "[ps:0] WARNING:root:careful")


def test_the_bar_follows_one_node_through_its_epochs():
    stream = Terminal()
    watcher = Watcher(stream=stream)
    for epoch in range(2):
        for step in (1, 10):
            watcher.progress("worker:0", Progress(epoch, step, 10, step))
            watcher.progress("worker:1", Progress(epoch, 3, 10, 3))
    watcher.close()
    text = stream.getvalue()
    assert "epoch 1" in text
    assert "epoch 2" in text
    assert "10/10" in text
    assert "3/10" not in text


def test_no_bar_where_there_is_no_terminal():
    stream = io.StringIO()
    Watcher(stream=stream).progress("worker:0", Progress(0, 1, 2, 1))
    assert stream.getvalue() == ""


def test_levels():
    assert parse_level("Warning") == parse_level(30) == 30
    with pytest.raises(ValueError, match="log_level='LOUD'"):
        parse_level("LOUD")

"""Notices that a host goes, from a file or a server of metadata."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from tensorflowonspark.messages import HostNotice
from tensorflowonspark.supervisor import host_notices
from tensorflowonspark.supervisor.host_notices import HostNotices, read_notice
from tests.support.programs import wait_for

TAKEN = '{"action": "terminate", "time": "2000-01-01T00:00:00Z"}'


@pytest.fixture
def server():
    """A server whose `answer` is a code and a text."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            code, text = server.answer
            server.flavor = self.headers["Metadata-Flavor"]
            self.send_response(code)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.answer = 404, ""
    Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("answer", "notice"),
    [
        ((404, "not found"), ""),  # of AWS, without one
        ((200, TAKEN), TAKEN),
        ((200, "FALSE"), ""),  # of Google
        ((200, "TRUE\n"), "TRUE"),
        ((200, ""), ""),
    ],
)
def test_what_a_server_says(server, answer, notice):
    server.answer = answer
    assert read_notice(f"http://127.0.0.1:{server.server_port}/notice") == notice
    assert server.flavor == "Google"


def test_what_a_file_says(tmp_path):
    path = tmp_path / "notice"
    assert read_notice(str(path)) == ""
    path.touch()
    assert read_notice(str(path)) == f"{path} is there"
    path.write_text("reboot\n")
    assert read_notice(str(path)) == "reboot"


def test_each_change_is_sent_and_a_server_that_fails_says_nothing(server, monkeypatch):
    monkeypatch.setattr(host_notices, "_CHECK_SECONDS", 0.01)
    sent = []
    notices = HostNotices(f"http://127.0.0.1:{server.server_port}/notice", sent.append)
    try:
        server.answer = 200, TAKEN
        wait_for(lambda: sent, 10)
        server.answer = 500, "broken"
        server.answer = 404, ""
        wait_for(lambda: len(sent) > 1, 10)
        server.answer = 200, "later"
        wait_for(lambda: len(sent) > 2, 10)
    finally:
        notices.close()
    assert sent == [HostNotice(TAKEN, 0.0), HostNotice(), HostNotice("later")]

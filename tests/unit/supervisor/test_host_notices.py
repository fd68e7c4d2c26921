"""Notices that a host goes, from a file or a server of metadata."""

import json
import urllib.error
from datetime import datetime, timezone
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
            if server.token and (server.refuses or self.headers["X-aws-ec2-metadata-token"] != server.token):
                code, text = 401, "Unauthorized"
            if self.path.startswith("/metadata/instance/compute/name?"):
                code, text = 200, "vm_1"
            self.send_response(code)
            self.end_headers()
            self.wfile.write(text.encode())

        def do_PUT(self):
            assert self.path == "/latest/api/token"
            server.asked.append(self.headers["X-aws-ec2-metadata-token-ttl-seconds"])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(server.token.encode())

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.answer = 404, ""
    server.token, server.refuses, server.asked = "", False, []
    Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.deep
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


def test_a_server_that_wants_a_token_is_asked_for_one_and_again_when_that_is_over(server):
    server.token, server.answer = "first", (200, TAKEN)
    headers = dict(host_notices._HEADERS)
    for token in ("first", "first", "second"):
        server.token = token
        assert read_notice(f"http://127.0.0.1:{server.server_port}/latest/meta-data/spot", headers) == TAKEN
    assert server.asked == ["21600", "21600"]


def test_a_server_that_refuses_its_own_token_says_nothing(server):
    server.token = "none"
    server.refuses = True
    with pytest.raises(urllib.error.HTTPError, match="401"):
        read_notice(f"http://127.0.0.1:{server.server_port}/notice")


def event(kind="Preempt", *names, before="Mon, 19 Sep 2044 18:29:47 GMT"):
    return {
        "EventId": "a",
        "EventType": kind,
        "Resources": list(names),
        "EventStatus": "Scheduled",
        "NotBefore": before,
    }


@pytest.mark.deep
@pytest.mark.parametrize(
    ("events", "notice"),
    [
        ([], ""),
        ([event("Freeze", "vm_1")], ""),
        ([event("Preempt", "vm_10", "vm_0")], ""),  # of other machines of the set
        ([event("Preempt", "vm_1", before="")], '{"action": "Preempt"}'),
        (
            [event("Reboot", "vm_1"), event("Terminate", "vm_0", "vm_1")],
            '{"action": "Terminate", "time": "2044-09-19T18:29:47+00:00"}',
        ),
    ],
)
def test_azures_list_of_events(server, events, notice):
    server.answer = 200, json.dumps({"DocumentIncarnation": 7, "Events": events})
    url = f"http://127.0.0.1:{server.server_port}/metadata/scheduledevents?api-version=2020-07-01"
    assert read_notice(url) == notice
    if "time" in notice:
        now = datetime(2044, 9, 19, 18, 29, 17, tzinfo=timezone.utc)
        assert host_notices.seconds_left(notice, now) == 30.0


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

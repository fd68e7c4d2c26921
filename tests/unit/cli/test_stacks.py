"""``tfos stacks`` and what may answer it: a driver, and whatever has its address."""

import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tensorflowonspark.cli import main
from tests.support.pages import free_port
from tests.support.played_training import PlayedTraining


@pytest.fixture
def answers():
    """Return a server's URL, what it answers with, and the headers that it has received."""
    found = {"status": 200, "body": b"", "headers": {}, "received": []}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            found["received"].append((self.path, self.headers["Authorization"]))
            self.send_response(found["status"])
            for name, value in {"Content-Length": str(len(found["body"])), **found["headers"]}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(found["body"])

        def log_message(self, *_):
            """Log nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", found
    server.shutdown()
    server.server_close()


def test_the_token_comes_from_the_url_or_the_environment_and_is_in_no_path(answers, monkeypatch, capsys):
    url, found = answers
    found["body"] = b"stacks\n"
    assert main(["stacks", f"{url}/?token=of-the-url", "worker:1"]) == 0
    monkeypatch.setenv("TFOS_DASHBOARD_TOKEN", "of-the-environment")
    assert main(["stacks", url]) == 0
    assert found["received"] == [
        ("/stacks?node=worker%3A1", "Bearer of-the-url"),
        ("/stacks", "Bearer of-the-environment"),
    ]
    assert capsys.readouterr().out == "stacks\n" * 2


def test_a_terminal_gets_no_controls(answers, capsys):
    url, found = answers
    found["body"] = b"a\x1b]0;title\x07b\x1b[2J\n"
    assert main(["stacks", url]) == 0
    assert capsys.readouterr().out == "ab\n"


def test_a_redirect_is_not_followed(answers, capsys):
    url, found = answers
    found.update(status=302, headers={"Location": f"{url}/elsewhere"})
    assert main(["stacks", f"{url}?token=secret"]) == 1
    assert len(found["received"]) == 1
    error = capsys.readouterr().err
    assert "refuses the request (302)" in error
    assert "secret" not in error


def test_the_page_of_a_cluster_with_tls(capsys):
    pytest.importorskip("cryptography")
    with closing(PlayedTraining(1).serve(tls=True)) as dashboard:
        assert main(["stacks", dashboard.url]) == 1
        assert "a certificate that no authority has signed" in capsys.readouterr().err
        assert main(["stacks", "--insecure", dashboard.url, "worker:0"]) == 0
        assert capsys.readouterr().out == "stacks of worker:0"


@pytest.mark.parametrize("url", ["driver:8080", "file:///etc/passwd", "http://"])
def test_what_is_no_url_of_a_page_is_refused(capsys, url):
    assert main(["stacks", url]) == 2
    assert "expected the URL of a cluster's page" in capsys.readouterr().err


@pytest.mark.parametrize("port", ["no", None])
def test_a_page_that_is_gone(capsys, port):
    assert main(["stacks", f"http://127.0.0.1:{port or free_port()}/?token=secret"]) == 1
    error = capsys.readouterr().err
    assert "does not answer" in error
    assert "secret" not in error

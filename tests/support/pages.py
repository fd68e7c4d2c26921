"""Requests to a page of the driver, and its server-sent events."""

import http.client
import json
import socket
from contextlib import closing, contextmanager
from urllib.parse import urlsplit


def connection(url):
    parts = urlsplit(url)
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=10)


def get(url, path=None, method="GET", **headers):
    """Return the status, headers and body of a request; without a path, of the URL itself."""
    parts = urlsplit(url)
    with closing(connection(url)) as made:
        made.request(method, path if path is not None else f"{parts.path}?{parts.query}", headers=headers)
        answer = made.getresponse()
        return answer.status, answer.headers, answer.read()


def with_token(url, path):
    return f"{path}{'&' if '?' in path else '?'}{urlsplit(url).query}"


@contextmanager
def events(url):
    """Yield an iterator over the server-sent events: names and data."""
    with closing(connection(url)) as made:
        made.request("GET", with_token(url, "/events"))
        with closing(made.getresponse()) as answer:
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            yield _read_events(answer)


def _read_events(answer):
    name = None
    for line in answer:
        field, _, value = line.decode().strip().partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, json.loads(value)


def free_port():
    """Return a port at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]

"""Requests to a page of the driver, and what it shows."""

import http.client
import json
import socket
from contextlib import closing
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


def state(url, etag=""):
    """Return the headers and the data that a page gets that has a state already; 304 has no data."""
    status, headers, body = get(url, with_token(url, "/state"), **{"If-None-Match": etag})
    assert status in (200, 304)
    return headers, json.loads(body) if body else {}


def states(url):
    """Yield what a page gets, whenever it changes, until the cluster has ended."""
    headers = {"ETag": ""}
    while "Ended" not in headers:
        headers, data = state(url, headers["ETag"])
        if data:
            yield data


def free_port():
    """Return a port at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]

"""Contender: a driver with a dashboard, whose nodes and pages are other processes.

With the argument ``page`` this is such a page: it asks as `page.js` does, and counts the bytes of the answers.
"""

import json
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from urllib.parse import urlsplit

from benchmarks.common.rounds import serve_rounds
from benchmarks.scale.driver import Meter, cluster_of, start

_SETTLING_SECONDS = 12.0  # for rates to be known, and for two snapshots


def read_page(url):
    """Read the page and its states until the driver's end; report the bytes of each on standard output."""
    parts = urlsplit(url)
    path, headers = "/", {}
    while "Ended" not in headers:
        with closing(HTTPConnection(parts.hostname, parts.port)) as connection:
            known = {"Accept-Encoding": "gzip", "If-None-Match": headers.get("ETag", "")}
            connection.request("GET", f"{path}?{parts.query}", headers=known)
            answer = connection.getresponse()
            headers = answer.headers
            size = len(headers.as_bytes()) + len(answer.read())
        print(json.dumps([path, size]), flush=True)
        path = "/state"


class Page:
    """A page that is open in another process."""

    def __init__(self, url):
        command = [sys.executable, "-m", "benchmarks.dashboard.contenders", "page", url]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._read = 0

    def close(self):
        """Close it; return the bytes of the page, of the first state, and of each later answer."""
        self._process.kill()
        reads = [json.loads(line) for line in self._process.stdout]
        self._process.wait()
        states = [size for path, size in reads if path == "/state"]
        return {"page": sum(size for path, size in reads if path == "/"), "states": states}


@contextmanager
def pages(count, url):
    """Yield open pages, and a list that has what they read once they are closed."""
    opened, found = [Page(url) for _ in range(count)], []
    try:
        time.sleep(_SETTLING_SECONDS)
        yield found
    finally:
        found += [each.close() for each in opened]


def round_of(request):
    """Return the driver's processor time with several numbers of open pages, and the bytes that a page reads."""
    found = {}
    with cluster_of(request["nodes"], returns=True, trains=True, dashboard=True) as (cluster, _):
        start(cluster)
        for count in request["pages"]:
            with pages(count, cluster.dashboard_url) as read:
                meter = Meter()
                time.sleep(request["seconds"])
                used = meter.read()
            found[str(count)] = {"cpu": used["cpu"] / used["seconds"], "memory": used["memory"]}
            if count == 1:
                total = sum(read[0]["states"][1:]) / (request["seconds"] + _SETTLING_SECONDS)
                found["bytes"] = {"page": read[0]["page"], "state": read[0]["states"][0], "per second": total}
        cluster.shutdown()
    return found


if __name__ == "__main__":
    if sys.argv[1:2] == ["page"]:
        read_page(sys.argv[2])
    else:
        serve_rounds(round_of)

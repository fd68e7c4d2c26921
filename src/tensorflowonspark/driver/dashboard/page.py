"""The page as one HTML document that loads nothing: as the driver serves it, and as a report with the data inside."""

import os
import re
import secrets
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from tensorflowonspark.driver.dashboard.page_state import node_details, page_state
from tensorflowonspark.driver.dashboard.snapshots import to_json
from tensorflowonspark.driver.metrics.metrics_store import MetricsStore
from tensorflowonspark.errors import SpecError
from tensorflowonspark.run_manifest import OF_REPORT
from tensorflowonspark.storage import file_system, publish, use_session

_STYLES = ("uPlot.min.css", "page.css")
_SCRIPTS = ("uPlot.iife.min.js", "format.js", "model.js", "charts.js", "nodes.js", "page.js")
_NODES = 64  # of a report that have curves and lines; the others have their last state only
_POINTS = 128  # of their curves
_NONCE_BYTES = 16
_POLICY = (
    "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)


@cache
def _static(name: str) -> str:
    return (files(__package__) / "static" / name).read_text(encoding="utf-8")


def page_headers(nonce: str) -> dict[str, str]:
    """Return the headers of the page: it may run its own scripts, and reach its own server."""
    return {
        "Content-Security-Policy": f"{_POLICY.format(nonce=nonce)}; connect-src 'self'; frame-ancestors 'none'",
        "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    }


def page_html(nonce: str, data: Any = None) -> str:
    """Return the page.

    The nonce marks the page's own scripts and styles in its policy. A report has its data in it; a page without any
    asks its server.

    Examples
    --------
    >>> "</script><b>" in page_html("n", {"summary": {"name": "</script><b>"}})
    False
    """
    policy = ""
    if data is not None:  # a page that the driver serves has it in its headers
        policy = f'<meta http-equiv="Content-Security-Policy" content="{_POLICY.format(nonce=nonce)}">'
    parts = {
        "nonce": nonce,
        "policy": policy,
        "style": "\n".join(_static(name) for name in _STYLES),
        "script": "\n".join(_static(name) for name in _SCRIPTS),
        # An HTML parser looks for </script> and <!-- in there, whatever the text means in JSON.
        "data": to_json(data).replace("<", "\\u003c"),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _static("page.html"))


def report_html(store: MetricsStore) -> str:
    """Return the page with the metrics so far in it; of the nodes that it has room for, with curves and lines."""
    nodes = store.snapshot().nodes
    first = sorted(nodes, key=lambda node: (node.state != "failed", not node.straggler, -node.restarts, node.number))
    details = {}
    for node in first[:_NODES]:
        found = node_details(store, node.number)
        found["curves"] = {name: _thinned(values) for name, values in found["curves"].items()}
        details[node.number] = found
    nonce = secrets.token_urlsafe(_NONCE_BYTES)
    return page_html(nonce, {**page_state(store), "details": details, OF_REPORT: store.manifest})


def _thinned(values: list[Any]) -> list[Any]:
    return values[:: -(-len(values) // _POINTS)] if len(values) > _POINTS else values


def check_report_path(path: str | os.PathLike[str], setting: str = "path") -> str:
    """Return the path of a report as a string; refuse one that is no file.

    A file system that is not available raises `StorageError`.
    """
    if not path or not isinstance(path, (str, os.PathLike)):
        raise SpecError.of(setting, path, ": expected a file or a URL, as in 'run.html'")
    path = os.fspath(path)
    if "://" in path:
        use_session()
    system, target = file_system(path)
    if path.endswith("/") or system.isdir(target):
        raise SpecError.of(setting, path, f" is a directory: name a file in it, as in {path.rstrip('/')}/run.html")
    return path


def save_report(path: str | os.PathLike[str], page: Callable[[], str]) -> None:
    """Write the report, which `page` returns, to a file; `Cluster.save_report` documents it."""
    path = check_report_path(path)
    text = page()

    def write(local: str) -> None:
        Path(local).write_text(text, encoding="utf-8")

    publish(path, write)

"""The dashboard of one cluster: its servers, from the cluster's start to its end, over all restarts."""

import atexit
import os
import re
import secrets
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from importlib.util import find_spec

from tensorflowonspark.config import ClusterConfig
from tensorflowonspark.driver.dashboard.page import page_headers, page_html, report_html
from tensorflowonspark.driver.dashboard.page_server import PageServer, Request, Response, Route
from tensorflowonspark.driver.dashboard.page_state import node_details, page_state
from tensorflowonspark.driver.dashboard.prometheus import exposition
from tensorflowonspark.driver.dashboard.snapshots import Snapshots, to_json
from tensorflowonspark.driver.metrics.metrics_store import MetricsStore
from tensorflowonspark.driver.spark.backend import Backend
from tensorflowonspark.errors import SpecError, StartError, did_you_mean
from tensorflowonspark.settings import Dashboard
from tensorflowonspark.transport import new_credentials

_TOKEN_BYTES = 24
_LEAST_TOKEN = 16  # characters of one that the user sets
_NOT_IN_FILE_NAMES = re.compile(r"[^A-Za-z0-9]")
_INSTALL = 'pip install "tensorflowonspark[prometheus]"'


def require_packages(wanted: Dashboard) -> None:
    """Raise `SpecError` if a package is missing that the settings need.

    Examples
    --------
    >>> require_packages(Dashboard(metrics_port=9090))
    """
    if wanted.metrics_port is not None and find_spec("prometheus_client") is None:
        raise SpecError.of(
            "metrics_port",
            wanted.metrics_port,
            f" needs the package prometheus-client where the driver runs: {_INSTALL}",
        )


class DashboardService:
    """Serves the page, and the metrics for Prometheus, as far as the settings ask for them.

    `stacks` returns the Python stacks of the node of a name, of all nodes for an empty one. A port that is taken, or a
    token of TFOS_DASHBOARD_TOKEN that can't be one, raises `StartError`.
    """

    def __init__(
        self,
        backend: Backend,
        config: ClusterConfig,
        store: MetricsStore,
        tensorboard: Callable[[], str | None],
        stacks: Callable[[str], str],
    ) -> None:
        self.url: str | None = None
        self.metrics_url: str | None = None
        self._servers: list[PageServer] = []
        self._store = store
        self._collect_stacks = stacks
        self._snapshots = Snapshots(partial(page_state, store, tensorboard))
        self._owner = os.getpid()
        page_port, metrics_port = config.page_port, config.metrics_port
        if page_port is None and metrics_port is None:
            return
        advertised, host = backend.driver_host()
        token = _token()
        tls = backend.wants_tls() if config.tls is None else config.tls
        credentials = new_credentials(tls=True) if tls else None  # its certificate: that of the nodes changes
        page: dict[str, Route] = {"/": self._page, "/state": self._state, "/node": self._node}
        page |= {"/report": self._report, "/metrics": self._metrics, "/stacks": self._stacks}
        metrics: dict[str, Route] = {"/metrics": self._metrics}

        def serve(port: int, routes: dict[str, Route], setting: str) -> str:
            server = PageServer(host, port, token, routes, setting=setting, credentials=credentials)
            self._servers.append(server)
            name = f"[{advertised}]" if ":" in advertised else advertised
            return f"{'https' if tls else 'http'}://{name}:{server.port}"

        atexit.register(self.close)  # a cluster that its program never ends
        try:
            at = None
            if page_port is not None:
                at = serve(page_port, page, "dashboard")
                self.url = f"{at}/?token={token}"
            if metrics_port is not None:
                if at is None or metrics_port != page_port:
                    at = serve(metrics_port, metrics, "metrics_port")
                self.metrics_url = f"{at}/metrics?token={token}"
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Send the end of the cluster to the open pages, and stop; a forked child of the driver does nothing."""
        if os.getpid() != self._owner:
            return
        atexit.unregister(self.close)
        if self._servers:
            self._snapshots.close()
        for server in self._servers:
            server.close()
        self._servers = []

    # ---- what the servers answer

    def _page(self, _request: Request) -> Response:
        nonce = secrets.token_urlsafe(_TOKEN_BYTES)
        return Response(page_html(nonce), "text/html; charset=utf-8", headers=page_headers(nonce))

    def _state(self, request: Request) -> Response:
        return self._snapshots.answer(request.etag)

    def _node(self, request: Request) -> Response:
        number = request.query.get("number", "")
        if not number.isdecimal() or int(number) >= len(self._store.snapshot().nodes):
            return Response(f"There is no node number {number!r}\n", status=HTTPStatus.NOT_FOUND)
        return Response(to_json(node_details(self._store, int(number))), "application/json")

    def _report(self, _request: Request) -> Response:
        name = _NOT_IN_FILE_NAMES.sub("-", self._store.name or "cluster")
        headers = {"Content-Disposition": f'attachment; filename="{name}.html"'}
        return Response(report_html(self._store), "text/html; charset=utf-8", headers=headers)

    def _stacks(self, request: Request) -> Response:
        wanted, there = request.query.get("node", ""), [node.name for node in self._store.snapshot().nodes]
        if wanted and wanted not in there:
            text = f"There is no node {wanted}{did_you_mean(wanted, there)}: expected a name as worker:0\n"
            return Response(text, status=HTTPStatus.NOT_FOUND)
        return Response(self._collect_stacks(wanted))

    def _metrics(self, request: Request) -> Response:
        if find_spec("prometheus_client") is None:
            text = f"The metrics need the package prometheus-client where the driver runs: {_INSTALL}\n"
            return Response(text, status=HTTPStatus.NOT_FOUND)
        body, content_type = exposition(self._store.snapshot(), request.accept)
        return Response(body, content_type)


def _token() -> str:
    """Return the token: a new one, unless the user sets it, as for Prometheus."""
    given = os.environ.get("TFOS_DASHBOARD_TOKEN")
    if given is None:
        return secrets.token_urlsafe(_TOKEN_BYTES)
    if len(given) < _LEAST_TOKEN or not all(each.isalnum() or each in "-._~" for each in given) or not given.isascii():
        raise StartError(
            f"TFOS_DASHBOARD_TOKEN has {len(given)} characters: expected at least {_LEAST_TOKEN} letters, digits, or "
            "-._~ that nobody can guess"
        )
    return given

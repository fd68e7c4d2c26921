"""What can be seen of a cluster: its nodes, metrics and advice, the pages that show them, and a report."""

import os
from collections.abc import Sequence
from html import escape

from tensorflowonspark.config import ClusterSpec
from tensorflowonspark.driver.attempt import ClusterAttempt
from tensorflowonspark.driver.cluster_run import ClusterRun
from tensorflowonspark.driver.dashboard.page import report_html, save_report
from tensorflowonspark.driver.html_table import html_table
from tensorflowonspark.driver.metrics.records import ClusterMetrics
from tensorflowonspark.driver.monitor import Monitor
from tensorflowonspark.driver.nodes import Node, NodeInfo
from tensorflowonspark.messages import Progress

_FRAME = "display:inline-block;vertical-align:middle;width:8em;height:0.6em;border:1px solid currentColor"
_HEAD = ("node", "host", "state", "progress", "GPUs")


def describe_state(attempt: ClusterAttempt) -> str:
    """Return whether a cluster runs, in a word."""
    if attempt.running and attempt.monitor.end.failed:
        return "failed"
    return "running" if attempt.running else "ended" if attempt.started else "not started"


def cluster_html(attempt: ClusterAttempt, dashboard_url: str | None = None) -> str:
    """Return a table of the nodes, with the state and progress of each at this moment."""
    title = f"{attempt.monitor.roster.spec}, {describe_state(attempt)}"
    lines = [f"<div><strong>TensorFlow cluster</strong>: {escape(title)}"]
    for name, url in {"dashboard": dashboard_url, "TensorBoard": attempt.monitor.roster.tensorboard_url}.items():
        if url and attempt.running:
            lines.append(f', <a href="{escape(url)}">{name}</a>')
    return "".join([*lines, html_table(_HEAD, map(_cells, attempt.monitor.roster.nodes)), "</div>"])


def _cells(node: Node) -> Sequence[str]:
    gpus = ", ".join(node.member.gpus) if node.member else ""
    host = node.member.host if node.member else ""
    first = map(escape, (str(node.role), host, node.shown_state.name.lower()))
    return [*first, _progress(node.program.progress), escape(gpus)]


def _progress(now: Progress | None) -> str:
    if now is None:
        return ""
    if not now.steps:
        return f"step {now.step}"
    part = f"{100 * now.step / now.steps:.0f}%"
    bar = f'<div style="width:{part};height:100%;background:currentColor"></div>'
    return f'epoch {now.epoch + 1} <div style="{_FRAME}">{bar}</div> step {now.step} of {now.steps}'


class ClusterView:
    """The members of a `Cluster` that change nothing."""

    _run: ClusterRun

    @property
    def id(self) -> str:
        """The cluster's identifier: unique, and another one after each restart."""
        return self._attempt.cluster_id

    @property
    def spec(self) -> ClusterSpec:
        """The nodes by job; before the start, the most that there may be."""
        return self._monitor.roster.spec

    @property
    def nodes(self) -> tuple[NodeInfo, ...]:
        """The nodes and their present states, by number; a snapshot.

        Examples
        --------
        >>> with Cluster(spark, lambda: None) as cluster:
        ...     [(str(node.role), node.host is not None) for node in cluster.nodes]
        [('worker:0', True)]
        """
        return tuple(node.info for node in self._monitor.roster.nodes)

    @property
    def tensorboard_url(self) -> str | None:
        """The URL of TensorBoard; None if it was not asked for, or is not up yet."""
        return self._monitor.roster.tensorboard_url

    @property
    def dashboard_url(self) -> str | None:
        """The URL of the page that shows the training (docs/dashboard.md); None unless `dashboard` asks for it.

        It is set from `start` on, stays the same over restarts, and has the token without which nobody reads the page.
        """
        dashboard = self._run.dashboard
        return dashboard.url if dashboard is not None else None

    @property
    def metrics_url(self) -> str | None:
        """The URL at which Prometheus reads the metrics; None unless `metrics_port` asks for it."""
        dashboard = self._run.dashboard
        return dashboard.metrics_url if dashboard is not None else None

    def save_report(self, path: str | os.PathLike[str]) -> None:
        """Write the dashboard's page, with the metrics so far in it, to a file that needs no server and no network.

        It can be called at any time, also after the end, and without `dashboard`. The report has the last state of each
        node, and of at most 64 nodes (those with problems first) the curves and the last lines of output.

        Parameters
        ----------
        path : str or path
            The file to create or replace: a local path or a URL, as in ``"s3://bucket/run.html"``.

        Raises
        ------
        SpecError
            If the path is a directory, or no path.
        StorageError
            If the file system is not available, or refuses the file.

        Examples
        --------
        >>> import os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "run.html")
        >>> with Cluster(spark, lambda ctx: ctx.report(loss=0.5)) as cluster:
        ...     _ = cluster.join()
        >>> cluster.save_report(path)
        >>> os.path.getsize(path) > 50_000
        True
        """
        save_report(path, self._report)

    def _report(self) -> str:
        """Return the page of a report."""
        return report_html(self._run.metrics)

    def metrics(self) -> ClusterMetrics:
        """Return the metrics of the cluster and its nodes at this moment, and the epochs and events so far.

        It can be called at any time, also after the end; ``dataclasses.asdict`` makes a dict of the result.

        Returns
        -------
        ClusterMetrics
            A snapshot, with the rates of the last seconds. Once a node has returned its rates are those of its whole
            training.

        Examples
        --------
        >>> with Cluster(spark, lambda ctx: ctx.report(loss=0.5)) as cluster:
        ...     _ = cluster.join()
        ...     cluster.metrics().epochs[0].values
        {'loss': 0.5}
        """
        return self._run.metrics.snapshot()

    @property
    def advice(self) -> str | None:
        """What bounded the last training, and the setting that would help: the line at its end (docs/tuning.md).

        None if that is not certain, or the training took less than five seconds.

        Examples
        --------
        >>> cluster.advice  # doctest: +SKIP
        'computing bounded it: 1,888 steps took 30 s, each worker with 1.4 cores, and reading rows 1% of that time. Take
        a larger batch_size, or compile(steps_per_execution=10)'
        """
        return self._attempt.advice

    def __repr__(self) -> str:
        return f"<Cluster of {self.spec}, {describe_state(self._attempt)}>"

    def _repr_html_(self) -> str:
        """Return a table of the nodes, for notebooks."""
        return cluster_html(self._attempt, self.dashboard_url)

    @property
    def _attempt(self) -> ClusterAttempt:
        return self._run.attempt

    @property
    def _monitor(self) -> Monitor:
        return self._attempt.monitor

"""HTML of a cluster for notebooks, without colours of its own: readable on light and on dark pages."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from tensorflowonspark.driver.nodes import Node
from tensorflowonspark.messages import Progress

if TYPE_CHECKING:
    from tensorflowonspark.driver.attempt import ClusterAttempt

__all__ = ["cluster_html", "describe_state"]

_CELL = "text-align:left;padding:0.2em 1em 0.2em 0;border-bottom:1px solid currentColor"
_FRAME = "display:inline-block;vertical-align:middle;width:8em;height:0.6em;border:1px solid currentColor"
_HEAD = ("node", "host", "state", "progress", "GPUs")


def describe_state(attempt: "ClusterAttempt") -> str:
    """Return whether a cluster runs, in a word."""
    if attempt.running and attempt.monitor.failure() is not None:
        return "failed"
    return "running" if attempt.running else "ended" if attempt.started else "not started"


def cluster_html(attempt: "ClusterAttempt", dashboard_url: str | None = None) -> str:
    """Return a table of the nodes, with the state and progress of each at this moment.

    Parameters
    ----------
    attempt : ClusterAttempt
        The current start of the cluster.
    dashboard_url : str, optional
        The URL of its page.
    """
    title = f"{attempt.monitor.spec}, {describe_state(attempt)}"
    lines = [f"<div><strong>TensorFlow cluster</strong>: {escape(title)}"]
    for name, url in {"dashboard": dashboard_url, "TensorBoard": attempt.monitor.tensorboard_url}.items():
        if url and attempt.running:
            lines.append(f', <a href="{escape(url)}">{name}</a>')
    lines += ['<table style="border-collapse:collapse;background:none">', _row("th", map(escape, _HEAD))]
    lines += [_row("td", _cells(node)) for node in attempt.monitor.nodes]
    return "".join([*lines, "</table></div>"])


def _row(tag: str, cells: Iterable[str]) -> str:
    return "<tr>" + "".join(f'<{tag} style="{_CELL}">{cell}</{tag}>' for cell in cells) + "</tr>"


def _cells(node: Node) -> Sequence[str]:
    gpus = ", ".join(node.member.gpus) if node.member else ""
    host = node.member.host if node.member else ""
    return [*map(escape, (str(node.role), host, node.state.name.lower())), _progress(node.progress), escape(gpus)]


def _progress(now: Progress | None) -> str:
    if now is None:
        return ""
    if not now.steps:
        return f"step {now.step}"
    part = f"{100 * now.step / now.steps:.0f}%"
    bar = f'<div style="width:{part};height:100%;background:currentColor"></div>'
    return f'epoch {now.epoch + 1} <div style="{_FRAME}">{bar}</div> step {now.step} of {now.steps}'

"""A monitor without a cluster, what handles the messages of its nodes, and a console."""

from types import SimpleNamespace

from tensorflowonspark.config import ClusterConfig, ClusterSpec
from tensorflowonspark.driver.console import ConsoleReporter
from tensorflowonspark.driver.metrics.metrics_store import MetricsStore
from tensorflowonspark.driver.monitor import Monitor
from tensorflowonspark.driver.planned_restarts import PlannedRestarts
from tensorflowonspark.driver.reception import Reception
from tensorflowonspark.driver.recovery import Recovery


def monitor_of(spec, **settings):
    """Return the monitor of nodes of which none is started."""
    console = console_of(bar=False)
    run = SimpleNamespace(metrics=MetricsStore(), console=console, left=set(), may_restart=lambda _: False)
    return Monitor(ClusterConfig(spec, b"", **settings), run)


def console_of(bar=None, stream=None, about=None, **settings):
    """Return the console of a cluster of two workers."""
    return ConsoleReporter(ClusterConfig(ClusterSpec(2), b"", **settings), bar, stream, about=about)


def reception_of(monitor):
    """Return what handles the messages to a monitor."""
    recovery = Recovery(monitor)
    return Reception(monitor, recovery, PlannedRestarts(monitor, recovery))

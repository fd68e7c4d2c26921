"""TensorFlow clusters inside Spark applications.

Public names are imported at their first use. So importing the package is cheap and needs no other package, in the
driver, tasks, supervisors and nodes alike.
"""

from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorflowonspark.config import ClusterSpec as ClusterSpec
    from tensorflowonspark.config import Job as Job
    from tensorflowonspark.config import Role as Role
    from tensorflowonspark.driver.connect.client_cluster import Cluster as Cluster
    from tensorflowonspark.driver.feed.feed_settings import Data as Data
    from tensorflowonspark.driver.feed.structured_streaming import StreamingFeed as StreamingFeed
    from tensorflowonspark.driver.metrics.records import ClusterEvent as ClusterEvent
    from tensorflowonspark.driver.metrics.records import ClusterMetrics as ClusterMetrics
    from tensorflowonspark.driver.metrics.records import EpochMetrics as EpochMetrics
    from tensorflowonspark.driver.metrics.records import Goodput as Goodput
    from tensorflowonspark.driver.metrics.records import NodeMetrics as NodeMetrics
    from tensorflowonspark.driver.nodes import NodeInfo as NodeInfo
    from tensorflowonspark.driver.nodes import NodeState as NodeState
    from tensorflowonspark.driver.preflight import check_environment as check_environment
    from tensorflowonspark.driver.run import run as run
    from tensorflowonspark.driver.run import run_script as run_script
    from tensorflowonspark.driver.run_results import Results as Results
    from tensorflowonspark.errors import CheckpointError as CheckpointError
    from tensorflowonspark.errors import ClusterError as ClusterError
    from tensorflowonspark.errors import FeedError as FeedError
    from tensorflowonspark.errors import NodeError as NodeError
    from tensorflowonspark.errors import RequirementError as RequirementError
    from tensorflowonspark.errors import SlotsError as SlotsError
    from tensorflowonspark.errors import SpecError as SpecError
    from tensorflowonspark.errors import StartError as StartError
    from tensorflowonspark.errors import StorageError as StorageError
    from tensorflowonspark.errors import TFRecordError as TFRecordError
    from tensorflowonspark.frames.each import fit_each as fit_each
    from tensorflowonspark.frames.newest_windows import newest_windows as newest_windows
    from tensorflowonspark.ml.spark_adapt import adapt as adapt
    from tensorflowonspark.node.checkpoint.checkpoints import Checkpoints as Checkpoints
    from tensorflowonspark.node.context import Context as Context
    from tensorflowonspark.node.context import context as context
    from tensorflowonspark.node.feed.feed import Feed as Feed
    from tensorflowonspark.node.feed.row_window import Window as Window
    from tensorflowonspark.node.ps.coordinator import CoordinatedFeed as CoordinatedFeed
    from tensorflowonspark.node.save_points import Preemption as Preemption
    from tensorflowonspark.restart_policy import RestartPolicy as RestartPolicy
    from tensorflowonspark.search.tune import tune as tune
    from tensorflowonspark.settings import Dashboard as Dashboard
    from tensorflowonspark.settings import Logs as Logs
    from tensorflowonspark.settings import Network as Network
    from tensorflowonspark.settings import Nodes as Nodes
    from tensorflowonspark.tfrecords.dataframes import read_tfrecord as read_tfrecord
    from tensorflowonspark.tfrecords.dataframes import register_tfrecord as register_tfrecord
    from tensorflowonspark.tfrecords.dataframes import write_tfrecord as write_tfrecord

__version__ = "3.0.0rc1"

# The modules of TensorFlowOnSpark 2.x are found in this folder, under the names that programs import.
__path__.append(f"{__path__[0]}/v2/names")

_RENAMED = {"EnvironmentNotReady": "RequirementError"}
_PACKAGES = ("frames", "keras", "ml", "storage")
_MODULES = {
    "driver.connect.client_cluster": ("Cluster",),
    "driver.metrics.records": ("ClusterEvent", "ClusterMetrics", "EpochMetrics", "Goodput", "NodeMetrics"),
    "driver.nodes": ("NodeInfo", "NodeState"),
    "driver.preflight": ("check_environment",),
    "driver.run_results": ("Results",),
    "driver.run": ("run", "run_script"),
    "driver.feed.structured_streaming": ("StreamingFeed",),
    "node.ps.coordinator": ("CoordinatedFeed",),
    "node.feed.feed": ("Feed",),
    "node.feed.row_window": ("Window",),
    "errors": (
        "CheckpointError",
        "ClusterError",
        "FeedError",
        "NodeError",
        "RequirementError",
        "SlotsError",
        "SpecError",
        "StartError",
        "StorageError",
        "TFRecordError",
    ),
    "frames.each": ("fit_each",),
    "frames.newest_windows": ("newest_windows",),
    "ml.spark_adapt": ("adapt",),
    "node.checkpoint.checkpoints": ("Checkpoints",),
    "node.save_points": ("Preemption",),
    "node.context": ("Context", "context"),
    "search.tune": ("tune",),
    "config": ("ClusterSpec", "Job", "Role"),
    "driver.feed.feed_settings": ("Data",),
    "restart_policy": ("RestartPolicy",),
    "settings": ("Dashboard", "Logs", "Network", "Nodes"),
    "tfrecords.dataframes": ("read_tfrecord", "register_tfrecord", "write_tfrecord"),
}
__all__ = ["__version__"]
__all__.extend(chain.from_iterable(_MODULES.values()))


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"{__name__}.{name}")
    if name in _RENAMED:
        from tensorflowonspark.renamed import warn_renamed

        new = _RENAMED[name]
        warn_renamed(f"{__name__}.{name}", f"{__name__}.{new}")
        name = new
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_PACKAGES])

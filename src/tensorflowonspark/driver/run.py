"""A cluster for one purpose: a function runs on it until it has returned everywhere."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tensorflowonspark.config import ClusterConfig, RestartPolicy
from tensorflowonspark.driver.cluster import Cluster, Function
from tensorflowonspark.driver.feed.job import check_frame
from tensorflowonspark.driver.restart import Restarts
from tensorflowonspark.driver.spark.backend import is_remote
from tensorflowonspark.driver.spark.connect import run_remotely
from tensorflowonspark.errors import NodeError, SpecError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["run"]


def run(
    spark: "SparkSession",
    function: Function,
    args: Any = None,
    *,
    data: "DataFrame | None" = None,
    validation: str = "",
    **settings: Any,
) -> dict[str, Any]:
    """Run a function on a cluster until it has returned everywhere: for one data set, or none.

    The nodes hold their Spark tasks; with `data`, each task feeds its own node from its own partition. This works over
    Spark Connect too, where what the nodes print is in the executors' log.

    Parameters
    ----------
    spark, function, args
        As for `Cluster`.
    data : DataFrame, optional
        What is fed; it is divided evenly over the workers. Only for clusters of workers.
    validation : str
        The boolean column of `data` that says which rows are to validate on.
    **settings
        All other settings of `Cluster`.

    Returns
    -------
    dict
        What the function returned, by the node's name.

    Raises
    ------
    ClusterError
        As `Cluster` does.

    Examples
    --------
    >>> run(spark, lambda args, ctx: args + ctx.index, 10, num_workers=2)
    {'worker:0': 10, 'worker:1': 11}
    """
    if not isinstance(validation, str):
        raise SpecError(
            "validation: run takes the name of a boolean column of the data; Cluster.train takes a DataFrame"
        )
    cluster = Cluster(spark, function, args, **settings, hold=True)
    if data is not None:
        if len(cluster.spec.roles) != len(cluster.spec.fed):
            raise SpecError(f"run(data=...) feeds every node, and not all are workers in {cluster.spec}: use Cluster")
        check_frame(data, validation or None)
    if is_remote(spark):
        if cluster.settings.min_workers is not None:
            raise SpecError(f"num_workers={settings['num_workers']!r}: over Spark Connect slots can't be counted")
        if settings.get("ps_on_driver"):
            raise SpecError("ps_on_driver=True: over Spark Connect executors can't reach the driver's machine")
        return _again(cluster.settings, lambda settings: run_remotely(spark, settings, data, validation))
    if data is None:
        cluster.start()
    else:
        cluster.hold_and_feed(data, validation)
    return cluster.shutdown()


def _again(settings: ClusterConfig, act: Callable[[ClusterConfig], dict[str, Any]]) -> dict[str, Any]:
    """Run a cluster that this process does not watch by itself; once more, if the policy allows it."""
    restarts = Restarts(settings)
    while True:
        try:
            return act(replace(settings, restarts=RestartPolicy(0), attempt=restarts.made))
        except NodeError as error:
            time.sleep(restarts.allow(error))

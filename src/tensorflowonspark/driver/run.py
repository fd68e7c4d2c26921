"""A cluster for one function or script, which runs until it has returned on all nodes."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tensorflowonspark.config import ClusterConfig
from tensorflowonspark.declarations import takes
from tensorflowonspark.driver.connect.client_cluster import Cluster
from tensorflowonspark.driver.connect.held_run import run_remotely
from tensorflowonspark.driver.connect.refused_settings import check_settings
from tensorflowonspark.driver.feed.feed_settings import Data, feed_request
from tensorflowonspark.driver.feed.job import FeedRequest
from tensorflowonspark.driver.program import Program, configure
from tensorflowonspark.driver.restart_budget import RestartBudget
from tensorflowonspark.driver.run_results import Results
from tensorflowonspark.driver.script import read_script
from tensorflowonspark.driver.spark.backend import is_remote
from tensorflowonspark.driver.spark.repartition import new_column, repartitioned
from tensorflowonspark.errors import OF_PEERS, NodeError, SpecError
from tensorflowonspark.restart_policy import RestartPolicy
from tensorflowonspark.settings import GROUPS, ClusterSettings, Nodes, as_group, with_groups

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from typing_extensions import Unpack

    from tensorflowonspark.driver.feed.mixed_frames import Mixed
    from tensorflowonspark.keywords import ClusterKeywords, RunKeywords

__all__ = ["run", "run_script"]

_PARTITIONS_PER_WORKER = 4
_GROUPS = GROUPS | {"data": Data}


@takes(ClusterSettings, old=partial(with_groups, groups=_GROUPS, warn=True), elsewhere=OF_PEERS)
def run(
    spark: "SparkSession",
    function: Program,
    args: Any = None,
    *,
    data: "DataFrame | Mixed | Data | None" = None,
    **settings: "Unpack[ClusterKeywords]",
) -> Results:
    """Run a function on a cluster until it has returned on all nodes: with one data set, or without.

    The nodes hold their Spark tasks. With `data`, each task feeds its own node from its own partition. A job feeds them
    instead, as `Cluster.train` does, and their slots are free after the start, if nodes are restarted alone
    (`RestartPolicy.scope`), if the rows are not kept or go to workers otherwise than evenly (`Data`), or with
    ``nodes=Nodes(hold=False)``. This works over Spark Connect too, where the output of nodes that
    hold their tasks is in the executors' log.

    Parameters
    ----------
    spark : SparkSession
        The application on whose executors the nodes run.
    function : callable or path-like
        The program, as for `Cluster`: ``function(args, ctx)``, ``function(ctx)`` or ``function()``; or a script.
    args : object
        The program's first argument: anything that pickles; of a script its command line, a list of strings.
    data : DataFrame or Data, optional
        The rows to train on, divided evenly over the workers; columns as for `Cluster.train`. With `Data` also the rows
        to validate on, and how all are fed. Only for clusters of workers.
    **settings
        As for `Cluster`.

    Returns
    -------
    Results
        A dict of what the function returned, by the node's name, with the figures of the training (over Spark Connect,
        of its last attempt).

    Raises
    ------
    SpecError
        If an argument can't be right.
    FeedError
        If the DataFrame can't be fed, or Spark failed to compute it.
    SlotsError
        If the application has too few task slots.
    StartError
        If a node did not come up; the error names it.
    NodeError
        If a node failed, and the restarts are used up.

    Examples
    --------
    >>> run(spark, lambda args, ctx: args + ctx.index, 10, num_workers=2)
    {'worker:0': 10, 'worker:1': 11}
    """
    given = None if data is None else as_group(Data, data, "data")
    nodes = as_group(Nodes, settings["nodes"], "nodes")
    policy = settings["restarts"]
    # A task of a barrier stage can't be repeated alone, and neither can what it has fed.
    alone = isinstance(policy, RestartPolicy) and policy.scope == "node"
    fed_by_job = given is not None and (alone or given.needs_job or nodes.hold is False)
    if fed_by_job and nodes.hold:
        raise SpecError.of("hold", True, " keeps the slots that a job which feeds these rows needs: leave it out")
    held = not fed_by_job if nodes.hold is None else nodes.hold
    settings["nodes"] = replace(nodes, hold=held)
    if is_remote(spark):
        check_settings(configure(b"", settings), held=held)
    cluster = Cluster(spark, function, args, **settings)
    if given is not None and len(cluster.spec.roles) != len(cluster.spec.fed):
        raise SpecError(f"run(data=...) feeds every node, and not all are workers in {cluster.spec}: use Cluster")
    if fed_by_job:
        assert given is not None
        return _run_fed(cluster, given)
    request = None if given is None else _held_request(given)
    if is_remote(spark) and held:
        return _with_restarts(cluster._config, lambda config: run_remotely(spark, config, request))
    cluster._start(request)
    return cluster.shutdown()


def _run_fed(cluster: Cluster, data: Data) -> Results:
    """Run a cluster that a job feeds, with several partitions for each worker: no rows move between workers."""
    rows, partitions = data.data, _PARTITIONS_PER_WORKER * len(cluster.spec.fed)
    if data.rebalance and not (data.global_shuffle or data.is_global):
        rows = repartitioned(rows, partitions)
    request = cluster._request(rows, data)
    with cluster:
        cluster._feed(request)
        return cluster.shutdown()


@takes(run, elsewhere=OF_PEERS)
def run_script(
    spark: "SparkSession",
    path: str | os.PathLike[str],
    arguments: Sequence[str] = (),
    *,
    module: bool = False,
    working_dir: str | os.PathLike[str] | None = None,
    files: Sequence[str | os.PathLike[str]] = (),
    **settings: "Unpack[RunKeywords]",
) -> Results:
    """Run a Python file on a cluster, unchanged, until it has ended on all nodes.

    On each node it is ``__main__``, as if ``python`` had started it: with its ``sys.argv`` and ``__file__``, and beside
    its modules. Nodes work in the directory of this process if they find it with the same script in it, as on one
    machine; else in one of their own with the script and the modules beside it that it imports. TensorFlow finds the
    cluster in ``TF_CONFIG``, and the script its context by `tensorflowonspark.context`.

    Parameters
    ----------
    spark : SparkSession
        The application on whose executors the nodes run.
    path : path-like or str
        The file; or the module's name.
    arguments : sequence of str
        The script's command line.
    module : bool
        Whether `path` is the name of a module, to be run as by ``python -m``.
    working_dir : path-like, optional
        A directory that contains the script: each node gets a copy of it, 64 MiB at most, to work in.
    files : sequence of path-like
        Files that each node finds in its working directory, by their names. Nodes work in the directory of this process
        only if the same files are in it.
    **settings
        As for `run`.

    Returns
    -------
    Results
        As from `run`; a script returns None.

    Raises
    ------
    SpecError
        If there is no such script, it is no Python, or an argument can't be right.
    NodeError
        If the script failed on a node; `NodeError.exit_code` is its exit code.
    ClusterError
        As for `run`.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> script = Path(tempfile.mkdtemp(), "train.py")
    >>> _ = script.write_text("import os, sys; print(sys.argv[1:], os.environ['TF_CONFIG'])")
    >>> run_script(spark, script, ["--lr", "0.1"], num_workers=2)
    {'worker:0': None, 'worker:1': None}
    """
    return run(spark, read_script(path, arguments, module=module, working_dir=working_dir, files=files), **settings)


def _held_request(data: Data) -> FeedRequest:
    """Return the feed of a held cluster, whose tasks have one input: rows to validate on are marked by a column."""
    request = replace(feed_request(data.data, data), round_robin=True)
    frame, validation = request.data, request.validation
    if validation is not None and not isinstance(validation, str):
        frame, validation = _with_marks(frame, validation)
    return replace(request, data=frame, validation=validation)


def _with_marks(data: "DataFrame", validation: "DataFrame") -> tuple["DataFrame", str]:
    """Return the rows of two DataFrames of the same columns, and the boolean column that marks those of the second."""
    from pyspark.sql import functions as f

    column = new_column(data, "validation")
    return data.withColumn(column, f.lit(False)).union(validation.withColumn(column, f.lit(True))), column


def _with_restarts(config: ClusterConfig, act: Callable[[ClusterConfig], Results]) -> Results:
    """Run a cluster that another process drives, again for as often as the policy allows."""
    budget = RestartBudget(config)
    while True:
        try:
            return act(replace(config, restarts=RestartPolicy(0), attempt=budget.used))
        except NodeError as error:
            time.sleep(budget.spend(error))

"""A cluster for one function or script, which runs until it has returned on all nodes."""

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tensorflowonspark.config import ClusterConfig, ClusterSettings, RestartPolicy
from tensorflowonspark.declarations import takes
from tensorflowonspark.driver.cluster import Cluster
from tensorflowonspark.driver.connect import run_remotely
from tensorflowonspark.driver.dashboard.page import check_report_path
from tensorflowonspark.driver.feed.job import FeedRequest, Start, check_frame, check_start
from tensorflowonspark.driver.program import Program
from tensorflowonspark.driver.restart import RestartBudget
from tensorflowonspark.driver.results import Results
from tensorflowonspark.driver.script import read_script
from tensorflowonspark.driver.spark.backend import is_remote
from tensorflowonspark.driver.spark.batch_rdd import BatchRDD
from tensorflowonspark.driver.spark.partitions import new_column, repartitioned
from tensorflowonspark.errors import ClusterError, NodeError, SpecError
from tensorflowonspark.terminal import CONSOLE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from typing_extensions import Unpack

    from tensorflowonspark.keywords import ClusterKeywords, RunKeywords

__all__ = ["run", "run_script"]

_log = logging.getLogger(__name__)
_PARTITIONS_PER_WORKER = 4


@takes(ClusterSettings)
def run(
    spark: "SparkSession",
    function: Program,
    args: Any = None,
    *,
    data: "DataFrame | None" = None,
    validation: "DataFrame | str | None" = None,
    start: Start = "all_rows",
    report: str | os.PathLike[str] | None = None,
    **settings: "Unpack[ClusterKeywords]",
) -> Results:
    """Run a function on a cluster until it has returned on all nodes: with one data set, or without.

    The nodes hold their Spark tasks. With `data`, each task feeds its own node from its own partition; but if nodes are
    restarted alone (`RestartPolicy.scope`), a job feeds them, as `Cluster.train` does, and their slots are free after
    the start. This works over Spark Connect too, where the nodes' output is in the executors' log.

    Parameters
    ----------
    spark : SparkSession
        The application on whose executors the nodes run.
    function : callable or path-like
        The program, as for `Cluster`: ``function(args, ctx)``, ``function(ctx)`` or ``function()``; or a script.
    args : object
        The program's first argument: anything that pickles; of a script its command line, a list of strings.
    data : DataFrame, optional
        The rows to train on, divided evenly over the workers; columns as for `Cluster.train`. Only for clusters of
        workers.
    validation : DataFrame or str, optional
        Rows to validate on, as for `Cluster.train`: a DataFrame with the same columns, or the boolean column of `data`
        that marks them.
    start : {"all_rows", "first_rows"}
        When the programs begin, as for `Cluster.train`. With "first_rows" the first epoch takes the rows as they
        arrive, and every pass over validation rows waits for all of them.
    report : str or path, optional
        The file of a report, which is written at the end, also after a failure: a local path or a URL, as for
        `Cluster.save_report`.
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
    if is_remote(spark):
        _check_remote(settings, report)
    if report is not None:
        check_report_path(report, "report")
    # A task of a barrier stage can't be repeated alone, and neither can what it has fed.
    restarts = settings["restarts"]
    fed_by_job = data is not None and isinstance(restarts, RestartPolicy) and restarts.scope == "node"
    cluster = Cluster(spark, function, args, hold=not fed_by_job, **settings)
    request = _request(cluster, data, validation, start)
    if is_remote(spark):
        if cluster._config.min_workers is not None:
            raise SpecError(f"num_workers={settings['num_workers']!r}: over Spark Connect slots can't be counted")
        if cluster._config.ps_on_driver:
            raise SpecError("ps_on_driver=True: over Spark Connect executors can't reach the driver's machine")
        if cluster._config.restarts_nodes:
            raise SpecError(
                "restarts=RestartPolicy(scope='node'): over Spark Connect all nodes are one barrier stage, of which "
                "Spark repeats no task alone: leave out scope, or use a session of the application's own"
            )
        return _with_restarts(cluster._config, lambda config: run_remotely(spark, config, request))
    with _reported(cluster, report):
        if fed_by_job:
            assert request is not None
            return _run_fed(cluster, request)
        cluster._start(request)
        return cluster.shutdown()


def _check_remote(settings: "ClusterKeywords", report: str | os.PathLike[str] | None) -> None:
    """Refuse what a cluster over Spark Connect does not have."""
    reasons = {
        ("show", "log_dir", "grace"): "the nodes' output is in the executors' log, and they end with the job",
        (
            "dashboard",
            "report",
            "metrics_port",
            "log_format",
        ): "the driver's part runs in a task, which serves no pages",
    }
    given = {**settings, "report": report}
    for names, reason in reasons.items():
        if any(given[name] != getattr(ClusterSettings, name, None) for name in names):
            shown = ", ".join(f"{name}={given[name]!r}" for name in names)
            raise SpecError(f"{shown}: over Spark Connect {reason}: leave these out")


@contextmanager
def _reported(cluster: Cluster, path: str | os.PathLike[str] | None) -> Iterator[None]:
    """Write the report at the end; after a failure, that failure stays the error that the caller gets."""
    if path is None:
        yield
        return
    try:
        yield
    except BaseException:
        try:
            cluster.save_report(path)
        except (ClusterError, OSError) as error:
            CONSOLE.log(_log, logging.WARNING, "the report %s was not written: %s", path, error)
        raise
    cluster.save_report(path)


def _run_fed(cluster: Cluster, request: FeedRequest) -> Results:
    """Run a cluster that a job feeds, with several partitions for each worker: no rows move between workers."""
    if request.starts_early:
        cluster._require_joint_restarts("start='first_rows'")
    data, workers = request.data, len(cluster.spec.fed)
    assert data is not None
    assert not isinstance(data, BatchRDD)  # `Cluster.train` alone takes one
    with cluster:
        cluster.train(repartitioned(data, _PARTITIONS_PER_WORKER * workers), validation=request.validation)
        return cluster.shutdown()


@takes(run)
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


def _request(
    cluster: Cluster, data: "DataFrame | None", validation: "DataFrame | str | None", start: Start
) -> FeedRequest | None:
    """Return the feed of a held cluster, whose tasks have one input: rows to validate on are marked by a column."""
    early = check_start(start) == "first_rows"
    if data is None:
        if validation is not None:
            raise SpecError("validation: there is no data to train on; pass data as well")
        if early:
            raise SpecError(f"start={start!r}: there is no data to train on; pass data as well")
        return None
    if len(cluster.spec.roles) != len(cluster.spec.fed):
        raise SpecError(f"run(data=...) feeds every node, and not all are workers in {cluster.spec}: use Cluster")
    check_frame(data, validation)
    if validation is not None and not isinstance(validation, str):
        data, validation = _with_marks(data, validation)
    return FeedRequest(data, validation, start=start, rebalance=not early, dealt=True)


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

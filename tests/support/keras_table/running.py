"""The columns' clusters: each runs all cells in a row, and a new one goes on after a cell that stalls."""

import os
import pickle
import subprocess
import sys

import tensorflowonspark as tfos
from tests.support.keras_table import rows
from tests.support.keras_table.cells import ALL, outcome_file
from tests.support.keras_table.columns import (
    JAX,
    MULTI_WORKER,
    NONE,
    ONE_PROCESS,
    ONE_PROCESS_ON_JAX,
    PARAMETER_SERVER,
    SEVERAL_WORKERS,
)
from tests.support.ladder import share_in_turn
from tests.support.paths import ROOT

MODULES = str(ROOT)


def multi_worker(args, ctx):
    """Run cells under MultiWorkerMirroredStrategy, on each of two workers."""
    import sys

    sys.path.append(args["modules"])
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    from tests.support.keras_table import cells
    from tests.support.keras_table.columns import MULTI_WORKER, Column

    cells.load()
    cells.run_cells(Column(MULTI_WORKER, args["directory"], strategy, ctx), args["keys"], args["directory"], ctx.index)


def on_jax(args, ctx):
    """Run cells on each of two workers of a JAX program."""
    import sys

    sys.path.append(args["modules"])
    from tests.support.keras_table import cells
    from tests.support.keras_table.columns import JAX, Column

    cells.load()
    cells.run_cells(Column(JAX, args["directory"], None, ctx), args["keys"], args["directory"], ctx.index)


def one_node(args, ctx):
    """Run cells in one node, without a strategy."""
    import sys

    sys.path.append(args["modules"])
    from tests.support.keras_table import cells
    from tests.support.keras_table.columns import NONE, Column

    cells.load()
    cells.run_cells(Column(NONE, args["directory"], None, ctx), args["keys"], args["directory"])


def parameter_server(args, ctx):
    """Run cells on the chief of a ParameterServerStrategy that has one worker."""
    import sys

    sys.path.append(args["modules"])
    import tensorflow as tf

    if not ctx.is_chief:
        ctx.join_server()
    strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    from tests.support.keras_table import cells
    from tests.support.keras_table.columns import PARAMETER_SERVER, Column

    cells.load()
    column = Column(PARAMETER_SERVER, args["directory"], strategy, ctx, coordinator)
    cells.run_cells(column, args["keys"], args["directory"])


def frame(spark, partitions):
    """Return a DataFrame with these rows in these partitions."""

    def made(ids):
        values, labels = rows.features(ids), rows.labels(ids)
        return [(int(row), values[place].tolist(), float(labels[place])) for place, row in enumerate(ids)]

    rdd = spark.sparkContext.parallelize([made(ids) for ids in partitions], len(partitions)).flatMap(list)
    return spark.createDataFrame(rdd, "id long, features array<float>, label float")


def start_reference(directory, keys, backend="tensorflow"):
    environment = {**os.environ, "PYTHONPATH": MODULES, "KERAS_BACKEND": backend}
    command = [sys.executable, "-m", "tests.support.keras_table.reference", str(directory), *keys]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def run_multi_worker(spark, directory, keys, column=MULTI_WORKER):
    """Run cells on two workers; return those that stalled, with the error that ended their cluster."""
    function, environment = (on_jax, {"KERAS_BACKEND": "jax"}) if column == JAX else (multi_worker, {})
    stalled: dict[str, str] = {}
    waiting = list(keys)
    while waiting:
        args = {"modules": MODULES, "directory": str(directory), "keys": waiting}
        try:
            with tfos.Cluster(spark, function, args, num_workers=2, env=environment) as cluster:
                cluster.train(frame(spark, rows.EVEN), validation=frame(spark, rows.UNEVEN), rebalance=False)
                cluster.join()
            break
        except tfos.ClusterError as error:
            ended = _first_without(directory, column, waiting, range(2))
            if ended is None:
                break
            place = waiting.index(ended)
            # After a cell that raised the workers may not be at the same place: the next one gets another cluster.
            if place and any(each[0] == "error" for each in outcomes(directory, column, waiting[place - 1])):
                waiting = waiting[place:]
            else:
                stalled[ended] = str(error)
                waiting = waiting[place + 1 :]
    return stalled


def run_parameter_server(spark, directory, keys):
    """Run cells under a ParameterServerStrategy; return those that stalled."""
    nodes = {"num_workers": 1, "num_ps": 1, "chief": True}
    return _run_with_all_rows(spark, directory, keys, PARAMETER_SERVER, parameter_server, nodes)


def run_one_node(spark, directory, keys):
    """Run cells in one node; return those that stalled."""
    return _run_with_all_rows(spark, directory, keys, NONE, one_node, {})


def _run_with_all_rows(spark, directory, keys, column, function, nodes):
    stalled = {}
    waiting = list(keys)
    together = [rows.in_one_process(each) for each in (rows.EVEN, rows.UNEVEN)]
    while waiting:
        args = {"modules": MODULES, "directory": str(directory), "keys": waiting}
        try:
            with tfos.Cluster(spark, function, args, **nodes) as cluster:
                cluster.train(frame(spark, together[:1]), validation=frame(spark, together[1:]))
                cluster.join()
            break
        except tfos.ClusterError as error:
            ended = _first_without(directory, column, waiting, range(1))
            if ended is None:
                break
            stalled[ended] = str(error)
            waiting = waiting[waiting.index(ended) + 1 :]
    return stalled


def _first_without(directory, column, keys, workers):
    for key in keys:
        if not all(outcome_file(directory, column, key, worker).exists() for worker in workers):
            return key
    return None


def outcomes(directory, column, key):
    """Return what each worker found."""
    workers = range(2) if column in SEVERAL_WORKERS else range(1)
    files = [outcome_file(directory, column, key, worker) for worker in workers]
    return [pickle.loads(file.read_bytes()) if file.exists() else None for file in files]


def reference(directory, column, key):
    """Return what one process found with the backend of a column."""
    return outcomes(directory, ONE_PROCESS_ON_JAX if column == JAX else ONE_PROCESS, key)[0]


def keys_of(column, share):
    """Return the cells of a column, of all cells one of `share`."""
    return [key for key in chosen(share) if column in ALL[key].columns]


def chosen(share):
    """Return one of `share` cells, of each group some."""
    return share_in_turn(ALL, share)

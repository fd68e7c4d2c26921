"""Contenders with a Spark session: our clusters, and the writers of the files that the others read."""

import importlib
import os
import shutil
import time

from benchmarks.common.rounds import serve_rounds
from benchmarks.common.spark import Frames, run_all, two_whole_workers
from benchmarks.peers import passes

_NOISE = f"transform(sequence(2, {passes.WIDTH}), each -> cast(hash(id, each) / 2147483648D as float))"
COLUMNS = [f"concat(array(cast(id as float)), {_NOISE}) as features", "cast(id as int) as label"]


def program(_args, ctx):
    """Pass over the rows of a feed on a node."""
    ready = time.time()
    batches = ctx.batches(2 * passes.BATCH, features="features", label="label")

    def epoch():
        for x, y, weight in batches:
            counts = weight > 0  # the last batch is filled up with rows that do not count
            yield (x, y) if counts.all() else (x[counts], y[counts])

    return passes.pass_over(epoch, ready)


def ours(spark, frame, start, warm):
    """Return the time at which a cluster was asked for, and what its nodes have noted."""
    import cloudpickle

    import tensorflowonspark as tfos

    cloudpickle.register_pickle_by_value(passes)  # the nodes can't import it
    import_in_workers(spark, "tensorflowonspark.task.feeder")
    begin = time.time()
    with tfos.Cluster(spark, program, None, num_workers=2, nodes=tfos.Nodes(warm_nodes=warm)) as cluster:
        cluster.train(frame, cache="disk", start=start)
        return {"begin": begin, "written": begin, "processes": list(cluster.join().values())}


def import_in_workers(spark, module):
    """Import a module in Spark's Python workers, which end after a minute without a task."""

    def imported(batches):
        importlib.import_module(module)
        yield from batches

    run_all(spark.range(0, passes.PARTITIONS, 1, passes.PARTITIONS).mapInArrow(imported, "id long"))


def write_parquet(frame, directory):
    """Write files with Spark's own writer; without codec and dictionaries, which take time and save nothing here."""
    frame.write.options(**{"compression": "none", "parquet.enable.dictionary": "false"}).parquet(directory)


def records(frame):
    """Return an iterator over the rows of a pandas DataFrame, for mosaicml-streaming's converter."""
    return ({"features": x, "label": y} for x, y in zip(frame["features"], frame["label"], strict=True))


def write_mds(frame, directory):
    """Write shards with mosaicml-streaming's own converter; uncompressed ones are read faster."""
    from streaming.base.converters import dataframe_to_mds

    columns = {"features": f"ndarray:float32:{passes.WIDTH}", "label": "int32"}
    dataframe_to_mds(
        frame, mds_kwargs={"out": directory, "columns": columns, "compression": None}, udf_iterable=records
    )


def serve():
    """Serve rounds of our feeds, or of the writer that a request names."""
    with two_whole_workers("4g") as spark:
        frames = Frames(spark)

        def run_round(request):
            frame = frames.of(COLUMNS, request["rows"], passes.PARTITIONS)
            if "start" in request:
                return ours(spark, frame, request["start"], request["warm"])
            directory = request["directory"]
            shutil.rmtree(directory, ignore_errors=True)
            if request["write"] == "mds":
                import_in_workers(spark, "streaming.base.converters")
            begin = time.time()
            {"parquet": write_parquet, "mds": write_mds}[request["write"]](frame, directory)
            written = time.time()
            size = sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(directory) for name in names)
            return {"begin": begin, "written": written, "bytes": size}

        serve_rounds(run_round)


if __name__ == "__main__":
    serve()

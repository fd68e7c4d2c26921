"""The contender with the Spark session: our clusters, and the writer of the Parquet files that the others read."""

import importlib
import shutil
import time

from benchmarks.common.rounds import serve_rounds
from benchmarks.common.spark import Frames, two_whole_workers
from benchmarks.peers import passes
from benchmarks.peers.from_spark import write_parquet
from benchmarks.trainers import training

_NOISE = "cast(hash(id, each) / 2147483648D as float)"
_SIGNAL = "if(each % 10 = id % 10, 0.1F, 0F)"
_COLUMNS = [
    f"transform(sequence(1, {passes.WIDTH}), each -> {_NOISE} + {_SIGNAL}) as features",
    "cast(id % 10 as int) as label",
]
_ENVIRONMENTS = {"ours": {}, "jax": {"KERAS_BACKEND": "jax"}, "tf_keras": {"TF_USE_LEGACY_KERAS": "1"}}


def program(args, ctx):
    """Train on a node."""
    times = [time.time()]
    keras = importlib.import_module("tf_keras" if args["on"] == "tf_keras" else "keras")
    times.append(time.time())
    rows = {"features": "features", "label": "label", "shapes": {"features": (passes.WIDTH,)}}
    if args["on"] == "jax":
        model = training.build(keras, args["model"])
        times.append(time.time())
        return training.train(keras, model, ctx.batches(training.BATCH, **rows), times)
    with ctx.strategy().scope():
        model = training.build(keras, args["model"])
    times.append(time.time())
    return training.train(keras, model, ctx.dataset(training.BATCH, **rows), times)


def ours(spark, frame, request):
    """Train a model on a cluster of its own, none of whose nodes is forked from a warm one."""
    import tensorflowonspark as tfos

    call = time.time()
    settings = {"env": _ENVIRONMENTS[request["on"]], "nodes": tfos.Nodes(warm_nodes=False)}
    with tfos.Cluster(spark, program, request, num_workers=2, **settings) as cluster:
        cluster.train(frame)
        workers = list(cluster.join().by_worker)
    return {"call": call, "written": call, "workers": workers, "returned": time.time()}


def write(frame, directory):
    """Write the rows to files for a contender that reads them."""
    shutil.rmtree(directory, ignore_errors=True)
    call = time.time()
    write_parquet(frame, directory)
    return {"call": call, "written": time.time()}


def serve():
    """Serve rounds of our clusters, or of the writer if the request names a directory."""
    import cloudpickle

    for module in (passes, training):  # the nodes can't import them
        cloudpickle.register_pickle_by_value(module)
    with two_whole_workers("3g") as spark:
        frames = Frames(spark)

        def run_round(request):
            frame = frames.of(_COLUMNS, request["rows"], passes.PARTITIONS)
            return write(frame, request["write"]) if "write" in request else ours(spark, frame, request)

        serve_rounds(run_round)


if __name__ == "__main__":
    serve()

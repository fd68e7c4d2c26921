"""Training of dense layers with Adam's slots within a limit of memory: in one process, or divided among workers."""

import math
import re
import resource
import sys
from pathlib import Path

INNER, OUTER, INPUTS = 16384, 2048, 16  # the widths of the layers
ELEMENTS = 3 * (2 * INNER * OUTER)  # of the two large kernels and their slots


def megabytes(field):
    """Return what this process has of a kind of memory, as the kernel counts it."""
    return int(re.search(rf"{field}:\s*(\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024


def train(args, ctx):
    """Train with a limit of this process's memory, set after the imports; return losses, and what was added to it."""
    import jax
    import keras
    import tensorflow  # noqa: F401 - Keras imports it later

    if args["kind"]:
        ctx.layout(args["kind"])
    jax.numpy.ones(4).sum().block_until_ready()  # starts JAX and its threads
    before = megabytes("VmData"), megabytes("VmRSS")
    if args["limit_mb"]:
        limit = int((before[0] + args["limit_mb"]) * 2**20)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    keras.utils.set_random_seed(3)
    widths = (OUTER, INNER, OUTER)
    # Random numbers would take three times the memory of a kernel while it is made.
    layers = [
        keras.layers.Dense(width, "tanh", kernel_initializer=keras.initializers.Constant(0.01)) for width in widths
    ]
    model = keras.Sequential([keras.Input((INPUTS,)), *layers, keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(1e-3), "mse")
    batches = ctx.batches(64, features="x", label="y", shuffle=False)  # all rows in each step
    losses = model.fit(batches, epochs=4, verbose=0).history["loss"]
    if args.get("export"):
        ctx.export(model, args["export"])
    return losses, megabytes("VmHWM") - before[1]


def frame(spark):
    """Return 64 rows of numbers, and a number to learn."""
    rows = [([math.sin(number * (k + 1)) for k in range(INPUTS)], float(number % 5)) for number in range(64)]
    return spark.createDataFrame(rows, "x array<float>, y float")


def main():
    """Serve rounds on one Spark session."""
    import os

    import cloudpickle

    from benchmarks.common.rounds import serve_rounds

    os.environ.update({"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable})
    from pyspark.sql import SparkSession

    import tensorflowonspark as tfos

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the nodes can't import it
    spark = SparkSession.builder.master("local[4]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")

    def run_round(request):
        settings = {"env": {"KERAS_BACKEND": "jax"}, "nodes": tfos.Nodes(warm_nodes=False)}
        data = frame(spark)
        try:
            done = tfos.run(spark, train, request, num_workers=request["workers"], data=data, **settings)
        except tfos.NodeError as error:
            return {"error": str(error)[:600]}
        return {"losses": done["worker:0"][0], "memory": max(memory for _, memory in done.values())}

    serve_rounds(run_round)


if __name__ == "__main__":
    main()

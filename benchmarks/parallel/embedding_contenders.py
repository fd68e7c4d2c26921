"""Trainings with a table: divided among the workers, whole on each worker, or on parameter servers."""

import ctypes
import fcntl
import os
import socket
import struct
import sys
import time

from benchmarks.common.rounds import serve_rounds
from benchmarks.parallel import recommender

_NEW_NETWORK, _GET_FLAGS, _SET_FLAGS, _UP = 0x40000000, 0x8913, 0x8914, 1


def own_network():
    """Give this process and those that it starts a loopback of their own; return whether that is allowed."""
    if ctypes.CDLL(None).unshare(_NEW_NETWORK):
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        name, flags = struct.unpack("16sh", fcntl.ioctl(any_socket, _GET_FLAGS, struct.pack("16sh", b"lo", 0)))
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh", name, flags | _UP))
    return True


def sent_bytes():
    """Return the bytes that all processes have sent over the loopback."""
    from pathlib import Path

    line = next(line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[8])


def resident(field="VmRSS"):
    """Return the memory of this process in MB."""
    from pathlib import Path

    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024


def table_model(keras, args, plain):
    """Return a compiled model: one id per row, its vector, a weighted sum."""
    import tensorflowonspark as tfos

    rate, start = 0.1, 0.1
    options = {"sgd": keras.optimizers.SGD(rate), "adagrad": keras.optimizers.Adagrad(rate)}
    first = args.get("first", 0.01)
    if plain:
        constant = keras.initializers.Constant(first)
        layer = keras.layers.Embedding(args["rows"], 16, embeddings_initializer=constant)
    else:
        import numpy as np

        layer = tfos.keras.ShardedEmbedding(
            args["rows"], 16, options[args["optimizer"]], initializer=lambda ids: np.full((len(ids), 16), first)
        )
    kernel = keras.initializers.Constant([[start * (n - 8)] for n in range(16)])
    ids = keras.Input((), dtype="int64")
    model = keras.Model(ids, keras.layers.Dense(1, kernel_initializer=kernel)(layer(ids)))
    again = {"sgd": keras.optimizers.SGD(rate), "adagrad": keras.optimizers.Adagrad(rate)}[args["optimizer"]]
    model.compile(again, "mse")
    return model


def batches(args, count, batch):
    """Return ids and targets of some batches."""
    import numpy as np

    rng = np.random.default_rng(3)
    ids = rng.integers(0, args["rows"], count * batch)
    return ids, np.sin(ids)[:, None].astype("float32")


def losses(args, ctx):
    """Take 50 steps with each kind of table; return the loss of each step."""
    import keras
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    found = {}
    for kind in ("sharded", "plain"):
        with strategy.scope():
            model = table_model(keras, args, kind == "plain")
        data = tf.data.Dataset.from_tensor_slices(batches(args, 50, 64)).batch(64).repeat()
        found[kind] = model.fit(data, epochs=50, steps_per_epoch=1, verbose=0).history["loss"]
    return found


def limited(args, ctx):
    """Train with a limit of this process's address space, set after the imports; return the loss."""
    import resource

    import keras
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy() if ctx.num_workers > 1 else tf.distribute.get_strategy()
    tf.constant(0.0)  # starts TensorFlow and its threads
    limit = int((resident("VmSize") + args["limit_mb"]) * 2**20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with strategy.scope():
        model = table_model(keras, args, plain=False)
    data = batches(args, 5, 2048)
    return model.fit(*data, batch_size=2048, epochs=2, verbose=0).history["loss"][-1]


def steps(args, ctx):
    """Take steps; return seconds and bytes sent of one, and the memory of this process."""
    import keras
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = table_model(keras, args, args["kind"] == "plain")
    data = tf.data.Dataset.from_tensor_slices(batches(args, 8, 2048)).batch(2048).repeat()
    model.fit(data, steps_per_epoch=4, verbose=0)
    start, sent = time.monotonic(), sent_bytes()
    model.fit(data, steps_per_epoch=args["steps"], verbose=0)
    seconds, sent = time.monotonic() - start, sent_bytes() - sent
    return seconds / args["steps"], sent / args["steps"] / ctx.num_workers, resident(), resident("VmHWM")


def on_servers(args, ctx):
    """Take the steps of as many rows with parameter servers and tf_keras; return the same, and the servers' memory."""
    from pathlib import Path
    from threading import Thread

    if ctx.job in ("ps", "worker"):

        def note():
            while True:
                Path(args["folder"], str(ctx.role).replace(":", "-")).write_text(str(resident()))
                time.sleep(0.2)

        Thread(target=note, daemon=True).start()
        ctx.join_server()
    import tensorflow as tf

    strategy = tf.distribute.ParameterServerStrategy(
        tf.distribute.cluster_resolver.TFConfigClusterResolver(),
        variable_partitioner=tf.distribute.experimental.partitioners.FixedShardsPartitioner(2),
    )
    keras = tf.keras
    with strategy.scope():
        constant = keras.initializers.Constant(0.01)
        layers = [keras.layers.Embedding(args["rows"], 16, embeddings_initializer=constant), keras.layers.Dense(1)]
        model = keras.Sequential(layers)
        model.compile(keras.optimizers.legacy.Adagrad(0.1), "mse")
    ids, targets = batches(args, 8, 1024)

    def dataset(_context):
        return tf.data.Dataset.from_tensor_slices((ids, targets)).batch(1024).repeat()

    data = keras.utils.experimental.DatasetCreator(dataset)
    model.fit(data, epochs=1, steps_per_epoch=8, verbose=0)
    start, sent = time.monotonic(), sent_bytes()
    model.fit(data, epochs=1, steps_per_epoch=2 * args["steps"], verbose=0)
    seconds, sent = time.monotonic() - start, sent_bytes() - sent
    memory = {path.name: float(path.read_text()) for path in Path(args["folder"]).iterdir()}
    return seconds / args["steps"], sent / args["steps"] / 2, memory, resident()


def main():
    """Serve rounds of all kinds on one Spark session."""
    import tempfile

    import cloudpickle
    import pandas as pd

    private = own_network()
    os.environ.update({"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable})
    from pyspark.sql import SparkSession

    import tensorflowonspark as tfos

    for module in (sys.modules[__name__], recommender):
        cloudpickle.register_pickle_by_value(module)  # the nodes can't import them
    spark = SparkSession.builder.master("local[5]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")

    def run_round(request):
        kind, workers = request.pop("round"), request.pop("workers", 2)
        env = {"MALLOC_ARENA_MAX": "2"}
        if kind == "losses":
            return tfos.run(spark, losses, request, num_workers=workers)["worker:0"]
        if kind == "limited":
            try:
                done = tfos.run(
                    spark, limited, request, num_workers=workers, env=env, nodes=tfos.Nodes(warm_nodes=False)
                )
            except tfos.NodeError as error:
                return {"error": str(error)[:600]}
            return {"loss": done["worker:0"]}
        if kind == "steps":
            found = tfos.run(spark, steps, request, num_workers=workers, nodes=tfos.Nodes(warm_nodes=False)).values()
            seconds, sent, memory, peak = (max(each) for each in zip(*found, strict=True))
            return {"seconds": seconds, "bytes": sent, "memory": memory, "peak": peak, "private": private}
        if kind == "servers":
            with tempfile.TemporaryDirectory() as folder:
                settings = {"num_workers": 2, "num_ps": 2, "chief": True, "nodes": tfos.Nodes(warm_nodes=False)}
                env = {"TF_USE_LEGACY_KERAS": "1"}
                args = {**request, "folder": folder}
                found = tfos.run(spark, on_servers, args, **settings, env=env)["chief:0"]
            seconds, sent, memory, _ = found
            of = {job: max(size for name, size in memory.items() if name.startswith(job)) for job in ("ps", "worker")}
            return {"seconds": seconds, "bytes": sent, "memory": of["ps"], "worker": of["worker"], "private": private}
        user, item, click, probability = recommender.interactions(300, 100, request["interactions"], seed=7)
        held = user % 5 == item % 5
        frame = spark.createDataFrame(pd.DataFrame({"user": user, "item": item, "click": click})).repartition(4)
        args = {"users": 300, "items": 100, "learning_rate": 0.1, "batch_size": 500, "epochs": 5}
        parts = [frame.where(f"user % 5 {sign} item % 5") for sign in ("<>", "=")]
        given = {"data": tfos.Data(parts[0], validation=parts[1]), "num_workers": workers}
        found = tfos.run(spark, recommender.train, {**args, **request}, **given)["worker:0"]
        return {"auc": found[-1], "best": recommender.auc(click[held], probability[held])}

    serve_rounds(run_round)


if __name__ == "__main__":
    main()

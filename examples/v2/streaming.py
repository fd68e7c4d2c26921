"""Training on a stream: Spark feeds the nodes whatever each interval brings, until somebody asks for the end.

A stream's intervals are of all sizes, so that nodes can't keep step: each has a model of its own, and their weights are
averaged at the end. Here the end is asked for by a thread of the driver; any process that knows the address can do it.

    spark-submit --master spark://... streaming.py --cluster_size 2 --intervals 6 --model_dir line
"""

import argparse
import threading
import warnings

import numpy as np
from pyspark import SparkConf, SparkContext

from tensorflowonspark import TFCluster, reservation


def main_fun(args, ctx):
    """Fit a line to the points that come in; write its slope and its intercept."""
    import tensorflow as tf

    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(1,))])
    model.compile(optimizer=tf.keras.optimizers.SGD(learning_rate=0.1), loss="mse")

    points = 0
    tf_feed = ctx.get_data_feed()
    while not tf_feed.should_stop():
        batch = tf_feed.next_batch(args.batch_size)
        if len(batch) > 0:
            x, y = np.array(batch, dtype=np.float32).T
            model.train_on_batch(x[:, np.newaxis], y[:, np.newaxis])
            points += len(batch)

    model_dir = ctx.absolute_path(args.model_dir)
    tf.io.gfile.makedirs(model_dir)
    slope, intercept = (weight.item() for weight in model.get_weights())
    with tf.io.gfile.GFile(f"{model_dir}/part-{ctx.worker_num:05d}", "w") as result:
        result.write(f"{points} {slope} {intercept}\n")


def points(seed, count=1000):
    """Return points near the line y = 3 x - 2."""
    numbers = np.random.default_rng(seed)
    x = numbers.uniform(-1, 1, count)
    y = 3 * x - 2 + numbers.normal(0, 0.1, count)
    return np.stack([x, y], axis=1).tolist()


def stop_after(fed, server_addr):
    """Wait until enough was fed; then ask the cluster for its end."""
    fed.wait()
    client = reservation.Client(server_addr)
    client.request_stop()
    client.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", help="rows of a step of one node", type=int, default=20)
    parser.add_argument("--cluster_size", help="number of nodes", type=int, default=2)
    parser.add_argument("--intervals", help="of the stream, before its end", type=int, default=5)
    parser.add_argument("--model_dir", help="where the results go", default="line")
    args = parser.parse_args()

    warnings.simplefilter("ignore", FutureWarning)  # Spark's, about DStreams
    from pyspark.streaming import StreamingContext

    sc = SparkContext(conf=SparkConf().setAppName("streaming"))
    ssc = StreamingContext(sc, 1)
    stream = ssc.queueStream([sc.parallelize(points(seed), 4) for seed in range(args.intervals)])

    cluster = TFCluster.run(
        sc, main_fun, args, args.cluster_size, num_ps=0, input_mode=TFCluster.InputMode.SPARK, master_node="chief"
    )
    cluster.train(stream)

    fed, sizes = threading.Event(), []

    def note(rdd):
        """Count an interval that was fed: the outputs of an interval come one after the other."""
        sizes.append(rdd.count())
        if len(sizes) == args.intervals:
            fed.set()

    stream.foreachRDD(note)
    threading.Thread(target=stop_after, args=(fed, cluster.cluster_meta["server_addr"]), daemon=True).start()
    ssc.start()
    cluster.shutdown(ssc, grace_secs=5)

    lines = [[float(value) for value in line.split()] for line in sc.textFile(args.model_dir).collect()]
    seen, slope, intercept = (sum(values) for values in zip(*lines, strict=True))
    print(f"points: {seen:.0f} of {sum(sizes)} by {len(lines)} nodes")
    print(f"line: y = {slope / len(lines):.2f} x {intercept / len(lines):+.2f}")
    sc.stop()

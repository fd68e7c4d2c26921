"""Inference through a cluster: Spark feeds the rows of an RDD to the nodes, and gets an RDD of their results.

The model needs no training: the digit whose mean image is nearest, which is one dense layer.

    spark-submit --master spark://... cluster_inference.py --cluster_size 2
"""

import argparse

import numpy as np
from pyspark import SparkConf, SparkContext
from sklearn.datasets import load_digits

from tensorflowonspark import TFCluster


def main_fun(args, ctx):
    """Answer each row with the digit that was meant and the one that is predicted."""
    import tensorflow as tf

    model = tf.keras.Sequential([tf.keras.layers.Dense(10, input_shape=(64,))])
    model.set_weights([args.means.T, -(args.means**2).sum(axis=1) / 2])

    tf_feed = ctx.get_data_feed(train_mode=False)
    while not tf_feed.should_stop():
        batch = tf_feed.next_batch(args.batch_size)
        if len(batch) > 0:
            digits = [digit for _, digit in batch]
            scores = model(tf.constant([pixels for pixels, _ in batch], tf.float32))
            predictions = tf.argmax(scores, axis=1).numpy()
            tf_feed.batch_results(["{} {}".format(*pair) for pair in zip(digits, predictions, strict=True)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", help="rows of a prediction", type=int, default=100)
    parser.add_argument("--cluster_size", help="number of nodes", type=int, default=2)
    args = parser.parse_args()

    sc = SparkContext(conf=SparkConf().setAppName("cluster_inference"))
    images, digits = load_digits(return_X_y=True)
    args.means = np.stack([images[digits == digit].mean(axis=0) for digit in range(10)])
    rdd = sc.parallelize(list(zip(images.tolist(), digits.tolist(), strict=True)), 3 * args.cluster_size)

    cluster = TFCluster.run(
        sc, main_fun, args, args.cluster_size, num_ps=0, input_mode=TFCluster.InputMode.SPARK, master_node="chief"
    )
    results = cluster.inference(rdd)  # which Spark computes when it is asked for it: before the cluster's end
    lines = results.map(str.split).collect()
    cluster.shutdown()

    in_order = [int(digit) for digit, _ in lines] == digits.tolist()
    print("predictions: {}, {}".format(len(lines), "in order" if in_order else "out of order"))
    print(f"accuracy: {sum(digit == prediction for digit, prediction in lines) / len(lines):.3f}")
    sc.stop()

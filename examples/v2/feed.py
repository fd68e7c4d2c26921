"""Training that Spark feeds: the rows of an RDD go to the nodes, which train one Keras model in step.

Each node reads its share of the rows as a ``tf.data`` stream. The shares are not quite equal, and a node that runs dry
would leave the others waiting; so all of them stop after nine tenths of the steps and send the rest of the feed away.

    spark-submit --master spark://... feed.py --cluster_size 2 --epochs 8 --export_dir digits_model
"""

import argparse

from pyspark import SparkConf, SparkContext
from sklearn.datasets import load_digits

from tensorflowonspark import TFCluster


def main_fun(args, ctx):
    """Train with the other nodes; the chief exports the model and writes its accuracy beside it."""
    import numpy as np
    import tensorflow as tf

    from tensorflowonspark import compat

    strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Reshape((8, 8, 1), input_shape=(64,)),
                tf.keras.layers.Conv2D(16, 3, activation="relu"),
                tf.keras.layers.Flatten(),
                tf.keras.layers.Dense(10, activation="softmax"),
            ]
        )
        model.compile(
            optimizer=tf.keras.optimizers.Adam(learning_rate=args.learning_rate),
            loss="sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )

    tf_feed = ctx.get_data_feed()

    def rows():
        while not tf_feed.should_stop():
            for pixels, digit in tf_feed.next_batch(args.batch_size):
                yield np.array(pixels, dtype=np.float32) / 16, digit

    dataset = tf.data.Dataset.from_generator(rows, (tf.float32, tf.int64), (tf.TensorShape([64]), tf.TensorShape([])))
    options = tf.data.Options()
    compat.disable_auto_shard(options)
    dataset = dataset.batch(args.batch_size).with_options(options)

    # A batch is divided between the nodes: a step takes batch_size / num_workers rows of each feed.
    steps_per_epoch = int(args.rows / args.batch_size * 0.9)
    history = model.fit(dataset, epochs=args.epochs, steps_per_epoch=steps_per_epoch, verbose=2)
    tf_feed.terminate()

    export_dir = ctx.absolute_path(args.export_dir)
    compat.export_saved_model(model, export_dir, ctx.job_name == "chief")
    if ctx.job_name == "chief":
        with tf.io.gfile.GFile(export_dir + ".accuracy", "w") as result:
            result.write("{:.3f}\n".format(history.history["accuracy"][-1]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", help="rows of a step over all nodes", type=int, default=64)
    parser.add_argument("--cluster_size", help="number of nodes", type=int, default=2)
    parser.add_argument("--epochs", help="number of epochs", type=int, default=8)
    parser.add_argument("--export_dir", help="where the SavedModel goes", default="digits_model")
    parser.add_argument("--learning_rate", help="of the optimizer", type=float, default=0.003)
    parser.add_argument("--tensorboard", help="start a TensorBoard", action="store_true")
    args = parser.parse_args()

    sc = SparkContext(conf=SparkConf().setAppName("feed"))
    images, digits = load_digits(return_X_y=True)
    args.rows = len(images)
    rdd = sc.parallelize(list(zip(images.tolist(), digits.tolist(), strict=True)), 4 * args.cluster_size)

    cluster = TFCluster.run(
        sc,
        main_fun,
        args,
        args.cluster_size,
        num_ps=0,
        tensorboard=args.tensorboard,
        input_mode=TFCluster.InputMode.SPARK,
        master_node="chief",
    )
    cluster.train(rdd, args.epochs)
    cluster.shutdown(grace_secs=30)

    print("accuracy:", sc.textFile(args.export_dir + ".accuracy").first())
    sc.stop()

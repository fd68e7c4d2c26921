"""A Spark ML pipeline: ``TFEstimator`` trains on a DataFrame of TFRecords, its ``TFModel`` adds the predictions.

The columns that are mapped are fed in the order of their names. The model is found again by its SavedModel, whose
tensors have the names that Keras gives them.

    spark-submit --master spark://... estimator.py --cluster_size 2 --tfrecords digits_tfrecords --export_dir digits
"""

import argparse
import os

import numpy as np
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession
from sklearn.datasets import load_digits

from tensorflowonspark import dfutil
from tensorflowonspark.pipeline import TFEstimator


def main_fun(args, ctx):
    """Train on the rows of the columns of ``input_mapping``; the chief exports."""
    import tensorflow as tf

    from tensorflowonspark import TFNode, compat

    strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = tf.keras.Sequential()
        model.add(tf.keras.layers.Dense(64, activation="relu", input_shape=(64,)))
        model.add(tf.keras.layers.Dense(10, activation="softmax"))
        model.compile(
            optimizer=tf.keras.optimizers.Adam(learning_rate=0.005),
            loss="sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )

    tf_feed = TFNode.DataFeed(ctx.mgr, input_mapping=args.input_mapping)

    def rows():
        while not tf_feed.should_stop():
            batch = tf_feed.next_batch(1)
            if len(batch["digit"]) > 0:
                yield [pixel / 16 for pixel in batch["image"][0]], batch["digit"][0]

    signature = (tf.TensorSpec([64], tf.float32), tf.TensorSpec([], tf.int64))
    dataset = tf.data.Dataset.from_generator(rows, output_signature=signature)
    options = tf.data.Options()
    compat.disable_auto_shard(options)
    dataset = dataset.shuffle(200).batch(args.batch_size).with_options(options)

    model.fit(dataset, epochs=args.epochs, steps_per_epoch=args.steps, verbose=2)
    tf_feed.terminate()
    compat.export_saved_model(model, ctx.absolute_path(args.export_dir), ctx.job_name == "chief")


def write_tfrecords(spark, directory):
    """Write the handwritten digits of scikit-learn as TFRecord files."""
    images, digits = load_digits(return_X_y=True)
    rows = [([float(pixel) for pixel in image], int(digit)) for image, digit in zip(images, digits, strict=True)]
    dfutil.saveAsTFRecords(spark.createDataFrame(rows, ["image", "digit"]).repartition(8), directory)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", help="rows of a step over all nodes", type=int, default=64)
    parser.add_argument("--cluster_size", help="number of nodes", type=int, default=2)
    parser.add_argument("--epochs", help="number of epochs", type=int, default=8)
    parser.add_argument("--export_dir", help="where the SavedModel goes", default="digits_estimator")
    parser.add_argument("--tfrecords", help="the files' directory; made if it is not there", default="digits_tfrecords")
    args = parser.parse_args()

    sc = SparkContext(conf=SparkConf().setAppName("estimator"))
    spark = SparkSession(sc)
    if not os.path.exists(args.tfrecords):
        write_tfrecords(spark, args.tfrecords)
    df = dfutil.loadTFRecords(sc, args.tfrecords)
    assert dfutil.isLoadedDF(df)
    args.steps = int(df.count() / args.batch_size * 0.9)

    estimator = (
        TFEstimator(main_fun, args)
        .setInputMapping({"image": "image", "digit": "digit"})
        .setClusterSize(args.cluster_size)
        .setMasterNode("chief")
        .setExportDir(args.export_dir)
        .setEpochs(args.epochs)
        .setBatchSize(args.batch_size)
        .setSteps(args.steps)
        .setGraceSecs(10)
    )
    model = estimator.fit(df)

    model.setTagSet("serve").setSignatureDefKey("serving_default").setExportDir(args.export_dir)
    model.setInputMapping({"image": "dense_input"}).setOutputMapping({"dense_1": "scores"}).setBatchSize(128)
    predictions = model.transform(df)

    digits = np.array([row.digit for row in df.select("digit").collect()])
    scores = np.array([row.scores for row in predictions.collect()])
    print(f"accuracy: {(scores.argmax(axis=1) == digits).mean():.3f}")
    sc.stop()

"""A training that a stream feeds: new files arrive, and the model that they train answers meanwhile.

    spark-submit --master 'local[2]' examples/streaming/streaming.py

The rows are scikit-learn's handwritten digits. This program writes the files itself, one after the other, in the place
of the system that would.
"""

import argparse
from pathlib import Path

from pyspark.sql import SparkSession
from sklearn.datasets import load_digits

import tensorflowonspark as tfos


def train(args, ctx):
    """Run on every worker: train on each row that arrives, once, until the stream is stopped."""
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        layers = [keras.layers.Rescaling(1 / 16), keras.layers.Dense(64, "relu"), keras.layers.Dense(10, "softmax")]
        model = keras.Sequential([keras.Input((64,)), *layers])
        model.compile(keras.optimizers.Adam(5e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
        model.optimizer.build(model.trainable_variables)  # so that there is a state to restore

    checkpoint, state = ctx.checkpoint(f"{args['output']}/model"), tf.train.Checkpoint(model=model)
    first = checkpoint.restore(state)  # where the program was stopped before
    ctx.serve(model, features="image")  # answers from now on, while it is trained
    dataset = ctx.dataset(args["batch_size"], features="image", label="digit")
    model.fit(dataset, verbose=0)  # one epoch, as long as the stream
    steps = int(model.optimizer.iterations.numpy())
    checkpoint.save(state, steps)
    return first, steps


def accuracy(cluster, held_out):
    """Return the share of scans that the model classifies at this moment."""
    answers = cluster.inference(held_out, "scores array<float>", keep=["digit"])
    return answers.where("array_position(scores, array_max(scores)) - 1 = digit").count() / held_out.count()


def wait_until_trained(stream, rows):
    """Wait until the workers have taken so many rows of the stream."""
    while sum(progress["numInputRows"] for progress in stream.query.recentProgress) < rows:
        if stream.wait(timeout=0.2):
            raise RuntimeError("the stream has ended before its rows were trained on")


def main():
    """Start the stream, write files, follow the accuracy, and stop in order."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--files", type=int, default=8, help="that arrive before the stream is stopped")
    parser.add_argument("--rows", type=int, default=400, help="of a file")
    parser.add_argument("--batch-size", type=int, default=32, help="rows of one step over all workers")
    parser.add_argument("--output", default="stream", help="the directory of the files and all that is kept")
    options = parser.parse_args()

    spark = SparkSession.builder.appName("streaming").getOrCreate()
    output = Path(options.output).resolve()
    images, digits = load_digits(return_X_y=True)
    rows = [(image.tolist(), int(digit)) for image, digit in zip(images, digits, strict=True)]
    schema = "image array<float>, digit int"
    table = spark.createDataFrame(rows, schema).coalesce(1)
    arriving, held_out = (table.where(f"pmod(xxhash64(image), 5) {sign} 0").cache() for sign in ("<>", "="))
    incoming = str(output / "incoming")
    spark.createDataFrame([], schema).write.mode("append").parquet(incoming)  # a stream needs its directory

    args = {"output": str(output), "batch_size": options.batch_size}
    with tfos.Cluster(spark, train, args, num_workers=options.workers) as cluster:
        source = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(incoming)
        stream = cluster.train_stream(source, checkpoint=str(output / "progress"))
        print(f"accuracy on {held_out.count()} held-out scans before: {accuracy(cluster, held_out):.3f}")
        sent = 0
        for number in range(options.files):
            draw = arriving.sample(True, options.rows / arriving.count(), seed=number)
            draw = draw.coalesce(1).cache()
            sent += draw.count()
            draw.write.mode("append").parquet(incoming)
            wait_until_trained(stream, sent)
            print(f"accuracy after {sent} rows: {accuracy(cluster, held_out):.3f}")
        stream.stop()  # ends the epoch: the micro-batch that is being fed is trained on first
        first, steps = cluster.join().chief
    print(f"stopped after {sent} rows and {steps - first} steps; {steps} steps with those of earlier runs")
    spark.stop()


if __name__ == "__main__":
    main()

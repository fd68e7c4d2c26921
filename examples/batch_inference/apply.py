"""A network applied to a directory of image files: predictions, and what an inner layer knows of images never seen."""

import argparse
from pathlib import Path

from pyspark.ml.classification import LogisticRegression
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import BucketedRandomProjectionLSH
from pyspark.ml.functions import array_to_vector
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from tensorflowonspark.ml import KerasEstimator, KerasModel

KNOWN = 8  # the network learns the digits below this one, and never sees an 8 or a 9
TRAIN = 1437  # the scans below this number are trained on; the others are held out


def write_files(directory):
    """Write scikit-learn's 1,797 scans as PNG files: directory/digit/number.png."""
    from PIL import Image
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    for number, (image, digit) in enumerate(zip(images, digits, strict=True)):
        path = directory / str(digit) / f"{number:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * 15).reshape(8, 8).astype("uint8")).save(path)


def decode(frames):
    """Decode the files in a task of Spark: from path and content to path, digit, number and image."""
    from io import BytesIO

    import numpy as np
    from PIL import Image

    for frame in frames:
        parts = frame.path.str.extract(r"/(\d)/(\d+)\.png$").astype(int)
        images = [np.asarray(Image.open(BytesIO(content)), "float32").reshape(-1) / 255 for content in frame.content]
        yield frame[["path"]].assign(digit=parts[0], number=parts[1], image=images)


def build():
    """Return a network for eight of the digits, with a layer of 32 numbers that describe an image."""
    import keras

    return keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Reshape((8, 8, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(32, activation="relu", name="embedding"),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(KNOWN, activation="softmax"),
        ]
    )


def draw(rows, path):
    """Draw images at the left, each with its nearest neighbors."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    figure, axes = plt.subplots(len(rows), 9, figsize=(7.5, 0.95 * len(rows)), layout="constrained")
    for line, (query, neighbors) in zip(axes, rows, strict=True):
        for each, row in zip(line, [query, *neighbors], strict=False):
            each.imshow(np.reshape(row.image, (8, 8)), cmap="gray_r")
            right = row is query or row.digit == query.digit
            each.set_title(row.digit, color="k" if right else "r", fontsize=9, pad=2)
            each.set_facecolor("w")
            each.set(xticks=[], yticks=[])
            for side in each.spines.values():
                side.set(visible=row is query, linewidth=2, color="tab:blue")
    figure.savefig(path, dpi=80)


def main():
    """Write the files, train on eight of the digits, and apply the network to all files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--output", type=Path, default=Path("batch-inference"), help="a directory that all nodes share")
    options = parser.parse_args()
    output = options.output.resolve()
    write_files(output / "scans")
    spark = SparkSession.builder.appName("batch-inference").getOrCreate()

    files = spark.read.format("binaryFile").option("recursiveFileLookup", True).load(str(output / "scans"))
    images = files.repartition(4).mapInPandas(decode, "path string, digit long, number long, image array<float>")
    images = images.cache()
    print(f"{images.count()} files")
    train, held_out = f.col("number") < TRAIN, f.col("number") >= TRAIN
    known = f.col("digit") < KNOWN

    loss = {"optimizer": "adam", "loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}
    columns = {"featuresCol": "image", "labelCol": "digit"}
    est = KerasEstimator(build, **loss, **columns, numWorkers=options.workers, epochs=options.epochs, batchSize=32)
    est.setVerbose(0).setSeed(1).fit(images.where(train & known)).write().overwrite().save(str(output / "model"))

    # From here on as in another program: a saved model, and a table.
    model = KerasModel.load(str(output / "model"))
    model.transform(images).select("path", "prediction", "probability").write.mode("overwrite").parquet(
        str(output / "predictions")
    )
    written = spark.read.parquet(str(output / "predictions")).join(images.select("path", "digit", "number"), "path")
    right = written.where(held_out & known).agg(f.avg((f.col("prediction") == f.col("digit")).cast("int"))).first()[0]
    print(f"predictions: {output / 'predictions'}")
    print(f"accuracy on the held-out scans of 0 to 7: {right:.3f}")

    embedded = model.layer_outputs(["embedding"]).transform(images)
    embedded = embedded.select("*", array_to_vector("embedding").alias("features")).drop("prediction", "probability")
    embedded = embedded.drop("rawPrediction").cache()

    lsh = BucketedRandomProjectionLSH(
        inputCol="features", outputCol="hashes", bucketLength=8.0, numHashTables=4, seed=1
    )
    index = lsh.fit(embedded)
    queries = [
        embedded.where(held_out & (f.col("digit") == digit)).orderBy("number").first() for digit in (2, 3, 5, 8, 9)
    ]
    seen = embedded.where(train)
    draw(
        [(query, index.approxNearestNeighbors(seen, query.features, 8).collect()) for query in queries],
        output / "neighbors.png",
    )
    print(f"picture: {options.output / 'neighbors.png'}")

    classifier = LogisticRegression(labelCol="digit", regParam=1e-3)
    measure = MulticlassClassificationEvaluator(labelCol="digit", metricName="accuracy")
    for name, frame in [
        ("pixels", embedded.withColumn("features", array_to_vector("image"))),
        ("the embedding", embedded),
    ]:
        fitted = classifier.fit(frame.where(train))
        accuracy = measure.evaluate(fitted.transform(frame.where(held_out)))
        print(f"logistic regression on {name}, all ten digits, accuracy on held-out scans: {accuracy:.3f}")
    spark.stop()


if __name__ == "__main__":
    main()

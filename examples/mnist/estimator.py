"""Handwritten digits in a Spark ML pipeline: two stages prepare the columns, and a Keras network is the third."""

import argparse
from pathlib import Path

from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import MinMaxScaler, StringIndexer
from pyspark.ml.functions import array_to_vector, vector_to_array
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from tensorflowonspark.ml import KerasEstimator

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def load(spark):
    """Return scikit-learn's 1,797 scans as a DataFrame: id, pixels (a vector of 64), word."""
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    rows = [(each, images[each].tolist(), WORDS[digits[each]]) for each in range(len(images))]
    data = spark.createDataFrame(rows, "id long, pixels array<double>, word string")
    return data.withColumn("pixels", array_to_vector("pixels"))


def build():
    """Return the network; the nodes call this, so the driver needs no TensorFlow."""
    import keras

    return keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Reshape((8, 8, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


def main():
    """Fit the pipeline, apply it to the rows that were held out, save it, and apply the saved one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--output", type=Path, default=Path("mnist-estimator"), help="a directory that all nodes share")
    options = parser.parse_args()
    spark = SparkSession.builder.appName("mnist-estimator").getOrCreate()
    train, held_out = load(spark).randomSplit([0.8, 0.2], seed=1)

    network = KerasEstimator(
        build,
        optimizer="adam",
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        numWorkers=options.workers,
        epochs=options.epochs,
        batchSize=32,
        seed=7,
    )
    pipeline = Pipeline(
        stages=[
            StringIndexer(inputCol="word", outputCol="label"),
            MinMaxScaler(inputCol="pixels", outputCol="features"),
            network,  # of the columns features and label, as any estimator of Spark ML
        ]
    )
    fitted = pipeline.fit(train)
    print(f"accuracy of each epoch: {[round(each, 3) for each in fitted.stages[-1].history['accuracy']]}")

    predicted = fitted.transform(held_out).cache()
    name = f.element_at(f.lit(fitted.stages[0].labels), (f.col("prediction") + 1).cast("int"))
    likely = f.round(f.array_max(vector_to_array("probability")), 3)
    predicted.select("id", "word", name.alias("predicted"), likely.alias("probability")).show(5)

    fitted.write().overwrite().save(str(options.output.resolve()))
    again = PipelineModel.load(str(options.output.resolve())).transform(held_out)
    equal = again.join(predicted, "id").where(again.prediction == predicted.prediction).count()
    print(f"the saved pipeline: {equal} of {predicted.count()} predictions are the same")

    measure = MulticlassClassificationEvaluator(metricName="accuracy")
    print(f"accuracy on the {predicted.count()} held-out scans: {measure.evaluate(predicted):.3f}")
    spark.stop()


if __name__ == "__main__":
    main()

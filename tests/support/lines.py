"""A linear model, and the rows it is fitted to."""

from pyspark.sql import functions as f


def line(rate=0.1):
    import keras

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(rate), "mse")
    return model


def lines(spark, rows=64, partitions=2):
    """Return rows of y = 2 x + 1."""
    return spark.range(0, rows, 1, partitions).select(
        f.array((f.col("id") / rows).cast("float")).alias("features"),
        (2 * f.col("id") / rows + 1).cast("float").alias("label"),
        (f.col("id") % 4 == 0).alias("held_out"),
        f.when(f.col("id") < rows / 2, 1.0).otherwise(0.0).alias("weight"),
    )

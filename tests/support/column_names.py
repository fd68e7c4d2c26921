"""Columns whose names Spark reads as expressions."""

from pyspark.sql import functions as f

# The last two differ in case only; and the first is no field of the struct `a`, which is there too.
NAMES = ["a.b", "a b", "a`b", "`q`", "*", "1st", "é", "a,b", "", "x/y=z%", "select", 'it\'s "it"', "v", "V"]
ROWS = 24


def frame(spark, names=NAMES, partitions=2):
    """Return rows in which the column in place n holds id + n."""
    columns = [(f.col("id") + place).cast("float").alias(name) for place, name in enumerate(names)]
    return spark.range(0, ROWS, 1, partitions).select(*columns)


def expected(names=NAMES):
    return {name: [float(row + place) for row in range(ROWS)] for place, name in enumerate(names)}


def summing(inputs):
    import keras

    model = keras.Sequential([keras.Input((inputs,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    return model

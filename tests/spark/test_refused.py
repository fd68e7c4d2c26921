"""What is given in place of a DataFrame."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import functions as f

import tensorflowonspark as tfos
from tensorflowonspark import frames
from tensorflowonspark.ml import KerasEstimator, KerasModel
from tests.support.networks import network

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(240), pytest.mark.smoke]


def test_what_is_no_dataframe(spark, tmp_path):
    given = {
        "pandas.*DataFrame: make one with spark.createDataFrame": pd.DataFrame({"x": [1.0]}),
        "numpy.ndarray: make one with spark.createDataFrame": np.zeros((3, 1)),
        "RDD: make one with spark.createDataFrame": spark.sparkContext.parallelize([1.0]),
        "list: make one with spark.createDataFrame": [1.0],
        "str: read it first": "rows.parquet",
        "pyarrow.*Table: make one": pa.table({"x": [1.0]}),
        "GroupedData: give the DataFrame itself": spark.range(3).groupBy("id"),
        "NoneType": None,
    }
    cluster = tfos.Cluster(spark, lambda args, ctx: None)
    est, stage = KerasEstimator(network), KerasModel.from_keras(network())
    calls = [
        cluster.train,
        cluster.train_stream,
        lambda data: cluster.inference(data, "y float"),
        lambda data: tfos.run(spark, print, data=data) if data is not None else cluster.train(data),
        lambda data: cluster.train(spark.range(3), validation=data) if data is not None else cluster.train(data),
        est.fit,
        lambda data: (
            est.copy({est.validationData: data}).fit(spark.range(3).toDF("features").withColumn("label", f.lit(1)))
            if data is not None
            else est.fit(data)
        ),
        stage.transform,
        lambda data: frames.map_blocks(lambda x: x, data),
        lambda data: frames.map_rows(network(), data),
        lambda data: frames.reduce_blocks(lambda x: x, data),
        lambda data: frames.reduce_rows(lambda x_1, x_2: x_1, data),
        frames.analyze,
        lambda data: frames.append_shape(data, "x", [1]),
        frames.print_schema,
        lambda data: tfos.write_tfrecord(data, str(tmp_path / "records")),
    ]
    for told, data in given.items():
        for call in calls:
            if isinstance(data, str) and call is calls[4]:
                continue  # the name of a column
            with pytest.raises(tfos.SpecError, match=f"expected a Spark DataFrame, and not a .*{told}"):
                call(data)
    with pytest.raises(tfos.SpecError, match="expected groups, as df.groupBy"):
        frames.aggregate(lambda x: x, spark.range(3))
    with pytest.raises(tfos.SpecError, match="there is no data to train on"):
        tfos.run(spark, print, data=tfos.Data(None, validation=spark.range(3)))

"""The modules whose docstrings hold examples, by what these need."""

import doctest
import tempfile
from importlib import import_module
from unittest.mock import patch

import numpy as np

import tensorflowonspark

WITH_SPARK = {
    "tensorflowonspark.driver.feed.feed_settings",
    "tensorflowonspark.frames.analysis",
    "tensorflowonspark.frames.each",
    "tensorflowonspark.frames.maps",
    "tensorflowonspark.frames.newest_windows",
    "tensorflowonspark.frames.reductions",
    "tensorflowonspark.ml.spark_adapt",
    "tensorflowonspark.ml.model",
    "tensorflowonspark.ml.summary",
    "tensorflowonspark.storage.hadoop",
    "tensorflowonspark.tfrecords.dataframes",
}
WITH_NODES = {
    "tensorflowonspark.driver.cluster",
    "tensorflowonspark.driver.cluster_view",
    "tensorflowonspark.driver.feed.structured_streaming",
    "tensorflowonspark.driver.run_results",
    "tensorflowonspark.driver.run",
    "tensorflowonspark.ml.estimator",
    "tensorflowonspark.search.tune",
}
# `unit/node/test_node_examples.py` runs these.
WITH_CONTEXT = {
    "tensorflowonspark.node.checkpoint.checkpoints",
    "tensorflowonspark.node.context",
    "tensorflowonspark.node.feed.feed",
    "tensorflowonspark.node.feed_access",
    "tensorflowonspark.node.file_access",
    "tensorflowonspark.node.output_access",
    "tensorflowonspark.node.parallel",
    "tensorflowonspark.node.ps.coordinator",
}


def run_examples(name, directory, flags=0, **names):
    """Run the examples of a module, with a directory for their files; fail if one shows something else.

    Parameters
    ----------
    name : str
        The module.
    directory : pathlib.Path
        Where `tempfile` makes its files meanwhile.
    flags : int
        Options of `doctest`.
    **names
        What the examples use beside the module's own names.
    """
    with patch.object(tempfile, "tempdir", str(directory)):
        result = doctest.testmod(import_module(name), extraglobs=names, optionflags=flags)
    assert not result.failed
    return result.attempted


def run_spark_examples(name, directory, spark):
    """Run the examples of a module that need a session; fail if there are none."""
    names = {"spark": spark, "run": tensorflowonspark.run, "Cluster": tensorflowonspark.Cluster, "np": np}
    assert run_examples(name, directory, **names)

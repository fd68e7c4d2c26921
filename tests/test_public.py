import doctest
import pkgutil
import subprocess
import sys
from importlib import import_module

import numpy as np
import pytest

import tensorflowonspark

# These need TensorFlow at their import, which takes seconds; what their examples say is said by the tests beside them.
_WITH_TENSORFLOW = {
    "tensorflowonspark.node.feed.dataset",
    "tensorflowonspark.node.ps.remote_dataset",
    "tensorflowonspark.keras.collectives",
    "tensorflowonspark.keras.callbacks",
    "tensorflowonspark.keras.resuming",
    "tensorflowonspark.frames.graphs",
}
_MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(tensorflowonspark.__path__, "tensorflowonspark.")
    # The modules of 2.x are found twice: in their folder, and as they are imported.
    if not module.name.endswith("__main__") and ".v2." not in module.name and module.name not in _WITH_TENSORFLOW
)
_WITH_SPARK = {
    "tensorflowonspark.driver.cluster",
    "tensorflowonspark.driver.run",
    "tensorflowonspark.frames.analysis",
    "tensorflowonspark.frames.maps",
    "tensorflowonspark.frames.reductions",
    "tensorflowonspark.ml.adapting",
    "tensorflowonspark.ml.estimator",
    "tensorflowonspark.ml.model",
    "tensorflowonspark.ml.summary",
}
# Their examples need a node's context: `node/test_node_examples.py` runs them.
_WITH_CONTEXT = {
    f"tensorflowonspark.node.{name}"
    for name in ("context", "feed_access", "feed.feed", "ps.coordinator", "checkpoint.checkpoints")
}


def test_public_names_are_all_there():
    for name in tensorflowonspark.__all__:
        assert getattr(tensorflowonspark, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        _ = tensorflowonspark.nothing


def test_neither_driver_nor_task_imports_tensorflow():
    program = (
        "import sys, tensorflowonspark.driver.cluster, tensorflowonspark.task.launch\n"
        "import tensorflowonspark.supervisor.supervisor\n"
        "print([name for name in ('tensorflow', 'keras', 'pyspark', 'pandas') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("name", [name for name in _MODULES if name not in _WITH_SPARK | _WITH_CONTEXT])
def test_examples_of(name):
    result = doctest.testmod(import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert not result.failed


@pytest.mark.masters("local")
@pytest.mark.parametrize("name", sorted(_WITH_SPARK))
def test_examples_with_spark_of(name, spark):
    names = {"spark": spark, "run": tensorflowonspark.run, "np": np}
    result = doctest.testmod(import_module(name), extraglobs=names)
    assert result.attempted
    assert not result.failed

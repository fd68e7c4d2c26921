"""Nodes whose Keras lacks a private name."""

import os

import numpy as np
import pytest

import tensorflowonspark as tfos

# Python runs this file when a node's process starts.
_REMOVES = """
import wrapt

def remove(saving):
    del saving.get_attr_skipset

wrapt.register_post_import_hook(remove, "keras.src.saving.saving_lib")
"""


@pytest.fixture
def without(tmp_path):
    """Settings of a cluster whose nodes lack the name."""
    (tmp_path / "sitecustomize.py").write_text(_REMOVES)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    return {"env": {"PYTHONPATH": path}, "nodes": tfos.Nodes(warm_nodes=False, start_timeout=200)}


@pytest.mark.slow
@pytest.mark.masters("local")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", ["strategy", "keras"])
def test_a_name_that_training_on_several_workers_needs_is_the_nodes_error(spark, without, first):
    def program(args, ctx):
        import tensorflow as tf

        if args == "keras":
            import keras
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        import keras

        with strategy.scope():
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        model.fit(np.ones((16, 3), "f4"), np.ones(16, "f4"), verbose=0)

    problem = (
        r"RequirementError: Keras [\d.]+ has no keras\.src\.saving\.saving_lib\.get_attr_skipset: "
        r'saving a model on several workers needs it; install "keras>=3\.10,<3\.17"'
    )
    with pytest.raises(tfos.NodeError, match=problem):
        tfos.run(spark, program, first, num_workers=2, **without)


@pytest.mark.slow
@pytest.mark.masters("local")
@pytest.mark.timeout(300)
def test_a_worker_alone_needs_no_such_name(spark, without):
    def program(args, ctx):
        import keras

        return int(keras.ops.convert_to_numpy(keras.ops.ones(3)).sum())

    assert tfos.run(spark, program, num_workers=1, **without) == {"worker:0": 3}

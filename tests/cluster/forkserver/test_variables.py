"""Environment variables that are read when TensorFlow is imported: who may have nodes that are forked after that."""

import os
import sys

import numpy as np
import pytest

import tensorflowonspark as tfos
from tests.support.processes import fork_servers
from tests.support.programs import is_warm, look, small_frame, wait_for


@pytest.mark.masters("local")
def test_nodes_are_forked_after_tasks_that_have_imported_tensorflow(spark, warm):
    """Spark reuses its Python workers: those of a `KerasModel`, or of the user's functions, launch nodes later."""

    def import_in_a_worker(batches):
        import os

        import tensorflow  # noqa: F401

        os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
        yield from batches

    spark.range(0, 40, 1, 8).mapInArrow(import_in_a_worker, "id long").collect()
    found = tfos.run(spark, look, num_workers=2)
    assert found == {"worker:0": (True, 6), "worker:1": (True, 6)}


@pytest.mark.masters("local")
def test_tf_keras_and_other_environments_get_fresh_nodes(spark, warm):
    def program(args, ctx):
        import tensorflow as tf

        return is_warm(), tf.keras.__name__.split(".")[0]

    results = tfos.run(spark, program, env={"TF_USE_LEGACY_KERAS": "1"}, nodes=tfos.Nodes(warm_nodes=True))
    assert results["worker:0"] == (False, "tf_keras")
    assert not tfos.run(spark, program, nodes=tfos.Nodes(warm_nodes=False))["worker:0"][0]


@pytest.mark.masters("local")
@pytest.mark.parametrize(("name", "value"), [("TF_ENABLE_ONEDNN_OPTS", "0"), ("KERAS_BACKEND", "jax")])
def test_a_program_that_sets_what_is_read_at_an_import_gets_fresh_nodes(spark, warm, name, value):
    def program(args, ctx):
        os.environ[name] = value
        import keras

        return is_warm(), keras.config.backend()

    backend = value if name == "KERAS_BACKEND" else "tensorflow"
    assert tfos.run(spark, program) == {"worker:0": (False, backend)}


@pytest.mark.slow
@pytest.mark.masters("local")
def test_two_workers_of_a_program_that_chooses_jax_itself_train_together(spark, warm):
    def program(args, ctx):
        os.environ["KERAS_BACKEND"] = "jax"
        import keras

        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        history = model.fit(ctx.dataset(8, features="x", label="y"), epochs=2, verbose=0)
        return type(keras.distribution.distribution()).__name__, history.history["loss"]

    frame = spark.range(0, 64, 1, 2).selectExpr("cast(id / 64 as float) as x", "cast(id / 32 as float) as y")
    one, other = tfos.run(spark, program, num_workers=2, data=frame).values()
    assert one == other
    assert one[0] == "DataParallel"


@pytest.mark.slow
@pytest.mark.masters("local")
def test_forked_workers_on_jax_are_one_program_and_train_as_fresh_ones(spark, cold):
    def train(args, ctx):
        """Train with no import but of parts of Keras; return whether the node was forked, and the result."""
        from keras.distribution import distribution
        from keras.layers import Dense, Input
        from keras.models import Sequential
        from keras.utils import set_random_seed

        if args["seeded"]:
            set_random_seed(7)
        model = Sequential([Input((3,)), Dense(4, "relu"), Dense(1)])
        model.compile("sgd", "mse")
        history = model.fit(ctx.batches(16, features="features", label="label"), epochs=2, verbose=0).history
        return is_warm(), type(distribution()).__name__, history["loss"], [np.asarray(each) for each in model.weights]

    settings = {"num_workers": 2, "env": {"KERAS_BACKEND": "jax"}}
    data = small_frame(spark, [40, 33])
    seeded = {"seeded": True}
    fresh = tfos.run(spark, train, seeded, data=data, nodes=tfos.Nodes(warm_nodes=False), **settings)
    tfos.run(spark, train, seeded, data=data, **settings)
    wait_for(fork_servers)
    wait_for(lambda: tfos.run(spark, lambda args, ctx: is_warm(), env=settings["env"])["worker:0"])
    # A worker that imports neither keeps nobody waiting, although its process has both.
    idle = tfos.run(spark, lambda args, ctx: (is_warm(), "jax" in sys.modules), **settings)
    assert set(idle.values()) == {(True, False)}
    # Their weights begin at random, and alike.
    one, other = tfos.run(spark, train, {"seeded": False}, data=data, **settings).values()
    assert (one[0], one[2]) == (True, other[2])
    np.testing.assert_equal(one[3], other[3])
    forked = tfos.run(spark, train, seeded, data=data, **settings)
    for before, after in zip(fresh.values(), forked.values(), strict=True):
        assert (before[:2], after[:2]) == ((False, "DataParallel"), (True, "DataParallel"))
        np.testing.assert_allclose(before[2], after[2], rtol=1e-5)
        for one, two in zip(before[3], after[3], strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-7)

"""Loss and metrics of two workers with uneven rows."""

import numpy as np
import pytest
import tensorflow as tf

import tensorflowonspark as tfos
from tensorflowonspark.keras.shards import mark_shard
from tests.support.padded_batches import (
    ROWS,
    assert_same,
    labelled,
    model_of,
    padded,
    plain,
    shown,
)


@pytest.mark.slow
@pytest.mark.masters("local")
@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_two_workers_with_uneven_rows_show_what_one_process_shows_of_all_rows(spark, library):
    """Seven rows and three, in three steps of four: one worker has nothing but padding in one of them, one in two."""
    keras = pytest.importorskip(library)

    def program(args, ctx):
        import importlib

        keras = importlib.import_module(args["keras"])
        shares = [slice(0, 7), slice(7, ROWS)]
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        results = {}
        for outputs, weights in (("one", np.ones(ROWS, "f4")), ("dict", None)):
            with strategy.scope():
                model = model_of(keras, outputs)
            share = mark_shard(labelled(padded(3, shares[ctx.index], weights), outputs))
            results[outputs] = shown(model, share)
        return results

    environment = {"TF_USE_LEGACY_KERAS": "1"} if keras.__name__ == "tf_keras" else {}
    results = tfos.run(spark, program, {"keras": keras.__name__}, num_workers=2, env=environment)
    assert results["worker:0"] == results["worker:1"]
    assert_same(results["worker:0"]["one"], plain(keras, "one", np.ones(ROWS, "f4")))
    assert_same(results["worker:0"]["dict"], plain(keras, "dict"))

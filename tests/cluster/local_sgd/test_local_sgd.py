"""Local SGD and DiLoCo on real nodes: equal weights, lost workers, checkpoints, and what is refused."""

import os
import signal
import time

import numpy as np
import pytest

import tensorflowonspark as tfos
from tests.support.programs import small_frame, small_model

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(240)]


def fit(args, ctx):
    """Fit the small model apart from the other workers; return what the tests compare."""
    import keras

    import tensorflowonspark as tfos

    class Killer(keras.callbacks.Callback):
        steps = 0

        def on_train_batch_end(self, batch, logs=None):
            self.steps += 1
            if self.steps == args.get("kill") and ctx.index == 1 and ctx.attempt == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(args.get("pause", 0.0))

    keras.utils.set_random_seed(ctx.index)
    model = small_model()
    callback = getattr(tfos.keras, args["callback"])(**args.get("options", {}))
    callbacks = [callback, Killer()]
    if args.get("directory"):
        callbacks.append(ctx.checkpoint(args["directory"]).callback())
    columns = {"features": "features", "label": "label"}
    rows = ctx.dataset(32, **columns)
    history = model.fit(
        rows,
        epochs=args.get("epochs", 2),
        validation_data=ctx.validation_dataset(32, **columns) if args.get("validation") else None,
        verbose=0,
        callbacks=callbacks,
    )
    return {
        "loss": history.history["loss"],
        "weights": [np.asarray(keras.ops.convert_to_numpy(each)) for each in model.weights],
        "rounds": callback.rounds,
        "bytes": callback.sent_bytes,
        "attempt": ctx.attempt,
        "epochs": len(history.epoch),
        "shared": callback._shared.version,
    }


def train(spark, args, sizes=(120, 120), **settings):
    with tfos.Cluster(spark, fit, args, num_workers=len(sizes), **settings) as cluster:
        validation = small_frame(spark, [40]) if args.get("validation") else None
        cluster.train(small_frame(spark, sizes), validation=validation)
        return cluster.join()


def assert_equal(results):
    first, *others = results.values()
    assert np.isfinite(first["loss"]).all()
    for other in others:
        for one, two in zip(first["weights"], other["weights"], strict=True):
            np.testing.assert_array_equal(one, two)


@pytest.mark.smoke
def test_workers_end_with_equal_weights_and_statistics(spark):
    results = train(spark, {"callback": "DiLoCo", "options": {"every": 5}, "validation": True})
    assert_equal(results)
    # 16 steps: three rounds of five, one before each of two validations, and one at the end.
    assert [each["rounds"] for each in results.values()] == [5, 5]
    assert all(each["bytes"] > 0 for each in results.values())


def test_local_sgd_with_jax(spark):
    alone = {"KERAS_BACKEND": "jax", "TFOS_JAX_ALONE": "1"}
    results = train(spark, {"callback": "LocalSGD", "options": {"every": 4}}, env=alone)
    assert_equal(results)
    assert [each["rounds"] for each in results.values()] == [5, 5]


@pytest.mark.slow
def test_a_killed_worker_that_is_started_again_alone_joins_the_others(spark):
    args = {"callback": "DiLoCo", "options": {"every": 5}, "kill": 7, "epochs": 20, "pause": 0.2}
    results = train(spark, args, (90, 90, 90), restarts=tfos.RestartPolicy(scope="node"))
    assert_equal(results)
    assert [each["attempt"] for each in results.values()] == [0, 1, 0]
    assert results["worker:1"]["rounds"] > 1
    assert len({each["shared"] for each in results.values()}) == 1


def test_the_estimator_averages_by_its_strategy(spark, tmp_path):
    from tensorflowonspark.ml import KerasEstimator

    estimator = KerasEstimator(
        small_model,
        strategy="diloco",
        callbacks=[tfos.keras.DiLoCo(every=3)],
        numWorkers=2,
        epochs=2,
        predictionCol="predicted",
    )
    rows = small_frame(spark, [60, 60])
    fitted = estimator.fit(rows)
    assert len(fitted.history["loss"]) == 2
    assert fitted.transform(rows).where("predicted is not null").count() == 120
    KerasEstimator(small_model, strategy="local_sgd").save(str(tmp_path / "stage"))
    assert KerasEstimator.load(str(tmp_path / "stage")).getStrategy() == "local_sgd"


@pytest.mark.slow
def test_all_continue_from_the_chiefs_checkpoint(spark, tmp_path):
    args = {
        "callback": "DiLoCo",
        "options": {"every": 3, "min_workers": 2},
        "kill": 11,
        "pause": 0.02,
        "directory": str(tmp_path),
    }
    results = train(spark, args, restarts=1)
    assert_equal(results)
    assert {(each["attempt"], each["epochs"]) for each in results.values()} == {(1, 2)}

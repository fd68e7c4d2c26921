"""Contenders: searches for the learning rate of the digits model, each of 50 trials of equal size."""

import sys
import time

import optuna

from benchmarks.common.rounds import serve_rounds
from benchmarks.common.spark import two_slots
from examples.mnist.fed import build, digits

_EPOCHS, _BATCH = 5, 64


def rate_of(trial):
    """Return a learning rate: the only parameter, so that all trials take equally long."""
    return trial.suggest_float("rate", 1e-4, 1e-2, log=True)


def study():
    """Return a study that draws at random, and prunes nothing."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(sampler=optuna.samplers.RandomSampler(1), pruner=optuna.pruners.NopPruner())


def compiled(rate):
    """Return a function that builds the model."""

    def made():
        import keras

        model = build()
        model.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy")
        return model

    return made


def on_spark(spark, warm):
    """Serve seconds of a search by `tfos.tune`; the session is there, and the rows are in its memory."""
    import tensorflowonspark as tfos
    from tensorflowonspark.ml import KerasEstimator

    rows = digits(spark)
    train, test = rows.where("id % 5 <> 0").cache(), rows.where("id % 5 = 0").cache()
    assert train.count() + test.count() == 1797
    options = {"warm_nodes": warm, "log_level": "WARNING"}

    def objective(trial):
        est = KerasEstimator(compiled(rate_of(trial)), featuresCol="image", labelCol="digit", clusterOptions=options)
        est.setParams(epochs=_EPOCHS, batchSize=_BATCH, validationData=test, seed=1)
        return est.fit(train).history["val_loss"][-1]

    def run_round(request):
        started = time.perf_counter()
        found = tfos.tune(spark, study(), objective, n_trials=request["trials"], show_progress_bar=False)
        seconds = time.perf_counter() - started
        assert [each.state.name for each in found.trials] == ["COMPLETE"] * request["trials"]
        return seconds

    serve_rounds(run_round)


def alone():
    """Serve seconds of a search by Optuna in this process, which has imported TensorFlow."""
    import keras
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = images.astype("float32")

    def objective(trial):
        keras.backend.clear_session()
        keras.utils.set_random_seed(1)
        model = compiled(rate_of(trial))()
        training, validation = (images[:1437], labels[:1437]), (images[1437:], labels[1437:])
        fitted = model.fit(*training, _BATCH, _EPOCHS, validation_data=validation, verbose=0)
        return fitted.history["val_loss"][-1]

    def run_round(request):
        started = time.perf_counter()
        found = study()
        found.optimize(objective, n_trials=request["trials"])
        return time.perf_counter() - started

    serve_rounds(run_round)


if __name__ == "__main__":
    if sys.argv[1] == "optuna":
        alone()
    else:
        with two_slots() as session:
            on_spark(session, sys.argv[1] == "warm")

"""A search for the best network for handwritten digits: 50 trials of an Optuna study on two slots.

    python examples/tune_digits.py --storage sqlite:///digits.db

Each trial trains a KerasEstimator on 80 % of scikit-learn's 1,797 scans, and is pruned if its validation loss is worse
than the median of the earlier ones. With a storage the search goes on where it was interrupted.
"""

import argparse
import os
import sys
import time
from pathlib import Path

import optuna

import tensorflowonspark as tfos
from tensorflowonspark.driver.preflight import check_environment
from tensorflowonspark.ml import KerasEstimator

sys.path.insert(0, str(Path(__file__).parent))
from digits import digits


def network(filters, units, dropout, rate):
    """Return a function that builds a compiled network; the nodes call it."""

    def build():
        import keras

        model = keras.Sequential(
            [
                keras.Input((64,), name="image"),
                keras.layers.Rescaling(1 / 16),
                keras.layers.Reshape((8, 8, 1)),
                keras.layers.Conv2D(filters, 3, activation="relu"),
                keras.layers.Flatten(),
                keras.layers.Dense(units, "relu"),
                keras.layers.Dropout(dropout),
                keras.layers.Dense(10, "softmax"),
            ]
        )
        model.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    return build


def estimator(parameters, epochs, test):
    """Return the estimator for a trial's parameters."""
    options = {"log_level": "WARNING"}
    est = KerasEstimator(network(**parameters), featuresCol="image", labelCol="digit", clusterOptions=options)
    return est.setParams(epochs=epochs, batchSize=64, validationData=test, seed=7)


def main():
    """Search, and train with the best parameters once more."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--master", help="of the Spark cluster (default: spark-submit's, or local[2])")
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--storage", help="of the study, as in sqlite:///digits.db (default: in memory)")
    options = parser.parse_args()
    check_environment()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # or Spark takes the first python3 on the PATH
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("search").config("spark.ui.showConsoleProgress", "false")
    master = options.master or (None if "SPARK_ENV_LOADED" in os.environ else "local[2]")
    if master:
        builder = builder.master(master)
    if (master or "").startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # what runs on this machine alone listens to it alone
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    data = digits(spark)
    train, test = data.where("id % 5 <> 0").cache(), data.where("id % 5 = 0").cache()

    def objective(trial):
        parameters = {
            "filters": trial.suggest_categorical("filters", [8, 16, 32]),
            "units": trial.suggest_int("units", 16, 128, log=True),
            "dropout": trial.suggest_float("dropout", 0.0, 0.5),
            "rate": trial.suggest_float("rate", 1e-4, 1e-1, log=True),
        }
        return estimator(parameters, options.epochs, test).fit(train).history["val_loss"][-1]

    study = optuna.create_study(
        study_name="digits",
        storage=options.storage,
        load_if_exists=True,
        sampler=optuna.samplers.TPESampler(seed=7),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=8, n_warmup_steps=1),
    )
    started = time.monotonic()
    tfos.tune(study, objective, spark, n_trials=options.trials)
    minutes = (time.monotonic() - started) / 60
    pruned = len(study.get_trials(states=(optuna.trial.TrialState.PRUNED,)))
    print(f"{options.trials} trials in {minutes:.1f} minutes; {pruned} of {len(study.trials)} were pruned")
    print(f"the best validation loss is {study.best_value:.4f}, with {study.best_params}")

    model = estimator(study.best_params, options.epochs * 3, test).fit(train)
    predicted = model.transform(test)
    accuracy = predicted.where("prediction = digit").count() / predicted.count()
    print(f"accuracy on the {predicted.count()} held-out scans after {options.epochs * 3} epochs: {accuracy:.3f}")
    spark.stop()


if __name__ == "__main__":
    try:
        main()
    except tfos.ClusterError as error:
        sys.exit(f"{type(error).__name__}: {error}")

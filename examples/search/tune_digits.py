"""A search for the best network for handwritten digits: trials of an Optuna study, two at a time on two slots.

    spark-submit --master 'local[2]' examples/search/tune_digits.py --storage sqlite:///digits.db

Each trial trains a KerasEstimator on 70 % of scikit-learn's 1,797 scans, and is pruned if its validation loss is worse
than the median of the earlier ones. With a storage the search goes on where it was interrupted.
"""

import argparse

import optuna
from optuna.trial import TrialState
from pyspark.sql import SparkSession
from sklearn.datasets import load_digits

import tensorflowonspark as tfos
from tensorflowonspark.ml import KerasEstimator


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


def draw(study, path):
    """Draw the last loss of each trial by its learning rate, and the pruned ones."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7, 4), layout="constrained")
    complete, pruned = (study.get_trials(states=(state,)) for state in (TrialState.COMPLETE, TrialState.PRUNED))
    rates = [trial.params["rate"] for trial in complete]
    sizes = [10 + trial.params["units"] for trial in complete]
    axis.scatter(rates, [trial.value for trial in complete], s=sizes, alpha=0.8, label="complete (size: units)")
    if pruned:
        last = [trial.intermediate_values[max(trial.intermediate_values)] for trial in pruned]
        axis.scatter([trial.params["rate"] for trial in pruned], last, marker="x", color="0.5", label="pruned")
    best = study.best_trial
    axis.scatter(best.params["rate"], best.value, s=220, facecolors="none", edgecolors="tab:red", label="best")
    axis.set(xscale="log", yscale="log", xlabel="learning rate", ylabel="loss on the validation rows")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    figure.savefig(path, dpi=100)


def main():
    """Search, and train with the best parameters once more."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--storage", help="of the study, as in sqlite:///digits.db (default: in memory)")
    parser.add_argument("--output", default="search.png", help="the picture of the trials")
    options = parser.parse_args()

    spark = SparkSession.builder.appName("search").getOrCreate()
    images, digits = load_digits(return_X_y=True)
    rows = [(image.tolist(), int(digit)) for image, digit in zip(images, digits, strict=True)]
    table = spark.createDataFrame(rows, "image array<float>, digit int").repartition(4)
    # The trials are compared on the second part; the third one is for the final figure alone.
    parts = ("< 14", "between 14 and 16", "> 16")
    train, validation, test = (table.where(f"pmod(xxhash64(image), 20) {part}").cache() for part in parts)

    def objective(trial):
        parameters = {
            "filters": trial.suggest_categorical("filters", [8, 16, 32]),
            "units": trial.suggest_int("units", 16, 128, log=True),
            "dropout": trial.suggest_float("dropout", 0.0, 0.5),
            "rate": trial.suggest_float("rate", 1e-4, 1e-1, log=True),
        }
        return estimator(parameters, options.epochs, validation).fit(train).history["val_loss"][-1]

    study = optuna.create_study(
        study_name="digits",
        storage=options.storage,
        load_if_exists=True,
        sampler=optuna.samplers.TPESampler(seed=7),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=6, n_warmup_steps=1),
    )
    tfos.tune(spark, study, objective, n_trials=options.trials)
    draw(study, options.output)
    pruned = len(study.get_trials(states=(TrialState.PRUNED,)))
    print(f"{pruned} of {len(study.trials)} trials were pruned; picture: {options.output}")
    found = ", ".join(f"{name} {value:.3g}" for name, value in study.best_params.items())
    print(f"the best validation loss is {study.best_value:.4f}, with {found}")

    model = estimator(study.best_params, options.epochs * 3, validation).fit(train)
    predicted = model.transform(test)
    accuracy = predicted.where("prediction = digit").count() / predicted.count()
    print(f"accuracy on the {predicted.count()} held-out scans after {options.epochs * 3} epochs: {accuracy:.3f}")
    spark.stop()


if __name__ == "__main__":
    main()

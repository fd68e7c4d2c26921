"""A search by KerasTuner that several workers share, with no word of TensorFlowOnSpark.

    tfos run --workers 3 examples/search/kt_wine.py

It runs with ``python`` too, one trial after the other. The rows are scikit-learn's wine data.
"""

import argparse

import keras
import keras_tuner
from sklearn.datasets import load_wine
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler


def build(hp):
    """Return a compiled network with the values that the tuner has chosen."""
    model = keras.Sequential([keras.Input((13,))])
    for _ in range(hp.Int("layers", 1, 2)):
        model.add(keras.layers.Dense(hp.Choice("units", [8, 16, 32]), "relu"))
    model.add(keras.layers.Dense(3, "softmax"))
    optimizer = keras.optimizers.Adam(hp.Float("rate", 1e-4, 1e-1, sampling="log"))
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def main():
    """Search; train with the best values, and evaluate on rows that the search has not seen."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--directory", default="kt_search", help="on a file system that all workers share")
    options = parser.parse_args()

    x, y = load_wine(return_X_y=True)
    x, x_test, y, y_test = train_test_split(x, y, test_size=0.3, random_state=1, stratify=y)
    scaler = StandardScaler().fit(x)
    x, x_test = scaler.transform(x), scaler.transform(x_test)

    settings = {"directory": options.directory, "project_name": "wine", "overwrite": True}
    tuner = keras_tuner.RandomSearch(build, "val_loss", max_trials=options.trials, seed=1, **settings)
    tuner.search(x, y, validation_split=0.25, epochs=options.epochs, verbose=0)

    best = tuner.get_best_hyperparameters()[0]
    model = build(best)
    model.fit(x, y, epochs=4 * options.epochs, verbose=0)
    _, accuracy = model.evaluate(x_test, y_test, verbose=0)
    print(f"the best values: {best.values}")
    print(f"accuracy on {len(y_test)} held-out wines: {accuracy:.3f}")


if __name__ == "__main__":
    main()

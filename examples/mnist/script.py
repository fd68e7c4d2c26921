"""Handwritten digits on several workers, as TensorFlow's guides write it: no word of TensorFlowOnSpark.

    tfos run --workers 2 examples/mnist/script.py --epochs 30

It runs with ``python`` too, as a cluster of one worker.
"""

import argparse
import json
import os

import keras
import tensorflow as tf
from sklearn.datasets import load_digits


def main():
    """Train and evaluate."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--model", help="where the chief saves the model")
    options = parser.parse_args()

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    keras.utils.set_random_seed(1)
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype("float32")
    train = tf.data.Dataset.from_tensor_slices((images[:1500], labels[:1500]))
    train = train.shuffle(1500, seed=1).batch(options.batch_size, drop_remainder=True)

    with strategy.scope():
        layers = [keras.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10, "softmax")]
        model = keras.Sequential(layers)
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(train, epochs=options.epochs, verbose=0)

    config = json.loads(os.environ.get("TF_CONFIG", "{}"))
    task = config.get("task", {"type": "worker", "index": 0})
    chief = "chief" if "chief" in config.get("cluster", {}) else "worker"
    correct = model.predict(images[1500:], verbose=0).argmax(axis=1) == labels[1500:]
    print(f"{task['type']} {task['index']}: accuracy {correct.mean():.3f}")
    if options.model and (task["type"], task["index"]) == (chief, 0):
        model.save(options.model)


if __name__ == "__main__":
    main()

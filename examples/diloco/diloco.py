"""The same network trained in step and by DiLoCo: accuracy, and the bytes that a worker sends for it.

    spark-submit --master 'local[2]' examples/diloco/diloco.py

The rows are scikit-learn's handwritten digits.
"""

import argparse
from contextlib import nullcontext
from pathlib import Path

import numpy as np
from pyspark.sql import SparkSession
from sklearn.datasets import load_digits

import tensorflowonspark as tfos


def train(args, ctx):
    """Run on every worker: train; return the accuracies of the epochs and the bytes sent until then."""
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    diloco = tfos.keras.DiLoCo(every=args["every"]) if args["every"] else None
    strategy = nullcontext() if diloco else tf.distribute.MultiWorkerMirroredStrategy().scope()
    with strategy:
        layers = [keras.layers.Rescaling(1 / 16), *(keras.layers.Dense(128, "relu") for _ in range(2))]
        model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(10, "softmax")])
        rate = keras.optimizers.schedules.CosineDecay(2e-3, args["epochs"] * ctx.feed().steps(args["batch_size"]))
        model.compile(keras.optimizers.AdamW(rate), "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])

    # The gradients of a step pass through a ring: each worker sends 2 (W - 1) / W times their size.
    of_step = 2 * (ctx.num_workers - 1) / ctx.num_workers * 4 * model.count_params()
    sent, rounds = [], []

    def count(_epoch, _logs):
        sent.append(diloco.sent_bytes if diloco else int(model.optimizer.iterations.numpy()) * of_step)
        rounds.append(diloco.rounds if diloco else int(model.optimizer.iterations.numpy()))

    columns = {"features": "image", "label": "digit"}
    history = model.fit(
        ctx.dataset(args["batch_size"], **columns),
        validation_data=ctx.validation_dataset(args["batch_size"], **columns),  # DiLoCo averages the models before
        epochs=args["epochs"],
        callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=count), *([diloco] if diloco else [])],
        verbose=0,
    )
    return {"accuracy": history.history["val_accuracy"], "sent": sent, "rounds": rounds}


def draw(curves, path):
    """Draw the accuracy by the megabytes that a worker has sent."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for (name, curve), style in zip(curves.items(), ("o-", "s-"), strict=True):
        axis.plot(np.array(curve["sent"]) / 1e6, curve["accuracy"], style, markersize=4, label=name)
    axis.set(xscale="log", xlabel="megabytes sent by a worker", ylabel="accuracy on held-out digits")
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    figure.savefig(path, dpi=100)


def main():
    """Train twice, and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=32, help="rows of one step over all workers")
    parser.add_argument("--every", type=int, default=20, help="steps between two rounds of DiLoCo")
    parser.add_argument("--output", type=Path, default=Path("diloco.png"), help="the picture")
    options = parser.parse_args()

    spark = SparkSession.builder.appName("diloco").getOrCreate()
    images, digits = load_digits(return_X_y=True)
    rows = [(image.tolist(), int(digit)) for image, digit in zip(images, digits, strict=True)]
    table = spark.createDataFrame(rows, "image array<float>, digit int").cache()
    seen, held_out = (table.where(f"pmod(xxhash64(image), 5) {sign} 0") for sign in ("<>", "="))

    curves = {}
    for name, every in {"in step": None, "DiLoCo": options.every}.items():
        args = {"every": every, "epochs": options.epochs, "batch_size": options.batch_size}
        results = tfos.run(spark, train, args, num_workers=options.workers, data=tfos.Data(seen, validation=held_out))
        # Under DiLoCo each worker validates on its own share of the rows, which are equally large.
        accuracy = np.mean([each["accuracy"] for each in results.by_worker], axis=0)
        curves[name] = {**results.chief, "accuracy": accuracy}
    draw(curves, options.output)
    for name, curve in curves.items():
        sent, rounds = curve["sent"][-1] / 1e6, curve["rounds"][-1]
        print(f"{name}: {rounds} exchanges, {sent:.2f} MB sent by a worker, accuracy {curve['accuracy'][-1]:.3f}")
    print(f"picture: {options.output}")
    spark.stop()


if __name__ == "__main__":
    main()

"""Screenshot of the dashboard for the documentation: a training of two workers, one of which is slowed.

``python tools/dashboard_screenshot.py`` writes docs/images/dashboard.png; ``--dark`` and ``--width`` show other forms.
It needs Chromium (Debian: chromium and chromium-driver).
"""

import argparse
import sys
import time
from pathlib import Path
from threading import Thread
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from pyspark.sql import SparkSession  # noqa: E402 - after the path
from pyspark.sql import functions as f  # noqa: E402

import tensorflowonspark as tfos  # noqa: E402
from tests.support.chromium import chromium, set_size  # noqa: E402

IMAGE = ROOT / "docs" / "images" / "dashboard.png"
_SLOWED_SECONDS = 0.04  # per step, of one worker
_ROWS, _EPOCHS = 4_000, 12
_SHOWN_AFTER = 10  # epochs: the advice is there


def train(args: dict[str, Any], ctx: tfos.Context) -> None:
    """Train a network on two workers; worker 1 computes something else in each step."""
    import keras
    import tensorflow as tf

    class Slow(keras.callbacks.Callback):
        """Uses the processor after each step."""

        def on_train_batch_end(self, batch: int, logs: object = None) -> None:  # noqa: ARG002 - Keras's signature
            end = time.process_time() + args["seconds"] * (ctx.index == 1)
            while time.process_time() < end:
                pass

    keras.utils.set_random_seed(1)
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        layers = [keras.layers.Dense(64, "relu"), keras.layers.Dense(3, "softmax")]
        model = keras.Sequential([keras.Input((8,)), *layers])
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    rows = {"features": "features", "label": "label"}
    model.fit(
        ctx.dataset(64, **rows),
        validation_data=ctx.validation_dataset(64, **rows),
        epochs=args["epochs"],
        verbose=2,
        callbacks=[Slow()],
    )


def main() -> None:
    """Train, and take the picture while the training runs."""
    parser = argparse.ArgumentParser(description="take the screenshot of the dashboard")
    parser.add_argument("--output", type=Path, default=IMAGE)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--width", type=int, default=1280)
    options = parser.parse_args()
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    features = f.array(*[f.rand(seed) for seed in range(8)])
    rows = spark.range(_ROWS).select(features.alias("features"))
    label = ((f.col("features")[0] + f.col("features")[1]) * 1.5).cast("int")
    rows = rows.withColumn("label", label).withColumn("held_out", f.rand(9) < 0.2)  # noqa: PLR2004
    with tfos.Cluster(
        spark, train, {"epochs": _EPOCHS, "seconds": _SLOWED_SECONDS}, num_workers=2, dashboard=True
    ) as cluster:
        feeding = Thread(target=cluster.train, args=[rows], kwargs={"validation": "held_out"}, daemon=True)
        feeding.start()
        with chromium(options.width, dark=options.dark) as browser:
            set_size(browser, options.width, 900)
            browser.get(cluster.dashboard_url)
            while len(cluster.metrics().epochs) < _SHOWN_AFTER and feeding.is_alive():
                time.sleep(0.2)
            height = browser.execute_script("return document.documentElement.scrollHeight")
            set_size(browser, options.width, height)
            time.sleep(2)  # the page is redrawn once a second
            while "Straggler" not in browser.find_element("id", "notices").text and feeding.is_alive():
                time.sleep(0.2)
            browser.save_screenshot(str(options.output))
        feeding.join()
    spark.stop()


if __name__ == "__main__":
    main()

"""The next character of a docstring: a small transformer on sequences of different lengths.

    spark-submit --master 'local[2]' examples/text/transformer.py

The texts are the docstrings of six packages of Python's own standard library.
"""

import argparse
import ast
import math
import os
import sysconfig
from pathlib import Path

import numpy as np
from pyspark.sql import SparkSession

import tensorflowonspark as tfos

PACKAGES = ["asyncio", "email", "importlib", "logging", "multiprocessing", "unittest"]
DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
CHARACTERS = 97  # a token: 0 pads, 1 is the beginning or the end of a text, 2 to 96 are the characters from " " to "~"


def docstrings():
    """Return the docstrings of the packages, each once, with single spaces."""
    nodes = (
        node
        for package in PACKAGES
        for file in sorted(Path(sysconfig.get_path("stdlib"), package).rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_bytes()))
        if isinstance(node, DEFINITIONS)
    )
    return list(dict.fromkeys(" ".join(text.split()) for text in map(ast.get_docstring, nodes) if text))


def tokens(text, length):
    """Return a text as sequences of at most `length` tokens and the one that follows them."""
    numbers = [1, *(ord(each) - 30 for each in text if " " <= each <= "~"), 1]
    return [numbers[start : start + length + 1] for start in range(0, len(numbers) - 1, length)]


def build(length, width=64, heads=4, blocks=2):
    """Return a transformer with causal attention: tokens to the logits of the next one, at each position."""
    import keras
    from keras import layers

    token = keras.Input((None,), dtype="int32")
    position = keras.ops.cumsum(keras.ops.ones_like(token), axis=1) - 1
    x = layers.Embedding(CHARACTERS, width)(token) + layers.Embedding(length, width)(position)
    for _ in range(blocks):
        normal = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(heads, width // heads)(normal, normal, use_causal_mask=True)
        x = x + layers.Dense(width)(layers.Dense(4 * width, "gelu")(layers.LayerNormalization()(x)))
    return keras.Model(token, layers.Dense(CHARACTERS)(layers.LayerNormalization()(x)))


def continued(model, text, length, characters=100):
    """Return a text with the characters that the model draws."""
    numbers = tokens(text, length)[0][:-1]
    rng = np.random.default_rng(0)
    for _ in range(characters):
        logits = np.asarray(model(np.array([numbers[-length:]]), training=False)[0, -1]) / 0.7
        odds = np.exp(logits - logits.max())
        odds[0] = 0.0
        numbers.append(int(rng.choice(CHARACTERS, p=odds / odds.sum())))
        if numbers[-1] == 1:
            break
    return "".join(chr(number + 30) for number in numbers if number > 1)


def train(args, ctx):
    """Run on every worker: train with the others; return the loss on the held-out texts, and a text."""
    import keras
    import tensorflow as tf

    def shifted(ragged, weights):
        """Pad a batch to its longest row; the input is all but the last token, the label all but the first."""
        padded = tf.cast(ragged.to_tensor(), tf.int32)
        real = tf.cast(padded[:, 1:] > 0, tf.float32)
        return padded[:, :-1], padded[:, 1:], real * weights[:, tf.newaxis]

    def batches(dataset):
        return dataset.map(lambda batch: shifted(batch["tokens"], batch["sample_weight"]))

    keras.utils.set_random_seed(1)
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = build(args["length"])
        losses = {"from_logits": True, "name": "nats"}
        nats = keras.metrics.SparseCategoricalCrossentropy(**losses)  # the mean over real characters
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.AdamW(2e-3), loss, weighted_metrics=[nats])
    ragged = {"features": ["tokens"], "shapes": {"tokens": (None,)}}  # rows of different lengths
    history = model.fit(
        batches(ctx.dataset(args["batch_size"], **ragged)),
        validation_data=batches(ctx.validation_dataset(args["batch_size"], **ragged)),
        epochs=args["epochs"],
        verbose=2 if ctx.is_chief else 0,
    )
    ctx.export(model, args["output"])
    return history.history["val_nats"][-1], continued(model, "Return the ", args["length"]) if ctx.is_chief else None


def trigrams(train, test):
    """Return the bits per character of a model that looks at the two characters before, with interpolation."""
    train, test = ([np.array([0, *row]) for row in part] for part in (train, test))
    counts = np.zeros((CHARACTERS,) * 3)
    for row in train:
        np.add.at(counts, (row[:-2], row[1:-1], row[2:]), 1)
    odds = np.full(CHARACTERS, 1 / CHARACTERS)
    for table in (counts.sum((0, 1)), counts.sum(0), counts):
        odds = (table + 4 * odds) / (table.sum(-1, keepdims=True) + 4)
    bits = [-np.log2(odds[row[:-2], row[1:-1], row[2:]]) for row in test]
    return np.concatenate(bits).mean()


def main():
    """Train on nine tenths of the docstrings, and measure on the others."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--length", type=int, default=96, help="characters that the model sees")
    parser.add_argument("--batch-size", type=int, default=64, help="sequences of one step over all workers")
    parser.add_argument("--output", type=os.path.abspath, default="transformer.keras", help="of the model")
    options = parser.parse_args()

    spark = SparkSession.builder.appName("text").getOrCreate()
    parts = [[], []]  # whole texts are held out
    for number, text in enumerate(docstrings()):
        parts[number % 10 == 0] += tokens(text, options.length)
    rows = [(each, index == 1) for index, part in enumerate(parts) for each in part]
    df = spark.createDataFrame(rows, "tokens array<int>, held_out boolean")
    results = tfos.run(
        spark, train, vars(options), num_workers=options.workers, data=tfos.Data(df, validation="held_out")
    )
    nats, text = results.chief
    print(f"{len(rows)} sequences of 2 to {options.length + 1} tokens, {len(parts[1])} of them held out")
    print(f"the model writes: {text}")
    print(f"bits per held-out character: {nats / math.log(2):.2f}; of trigrams: {trigrams(*parts):.2f}")
    spark.stop()


if __name__ == "__main__":
    main()

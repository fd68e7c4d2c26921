"""The rows and the networks of the inference benchmark, the same for every contender."""

from dataclasses import dataclass

from benchmarks.common.spark import HASH, floats

BATCH = 1024  # rows in a call of the model by the stages of 2.x


@dataclass(frozen=True)
class Kind:
    """One kind of row, and its network.

    Parameters
    ----------
    title : str
        Its name in the tables.
    column : str
        SQL of ``id`` for its only column, ``features``.
    old_column : str
        The same for TensorFlowOnSpark 2.2.5, which accepts no bytes.
    rows, slow_rows, old_rows : int
        Rows of a round: for most contenders, for ``predict_batch_udf`` and for TensorFlowOnSpark 2.2.5.
    """

    title: str
    column: str
    old_column: str
    rows: int
    slow_rows: int
    old_rows: int


def columns(features):
    """Return the columns of a DataFrame, given SQL for its features."""
    return ["id", f"{features} as features"]


KINDS = {
    "small": Kind("64 float32, Dense 128, Dense 10", floats(64), floats(64), 2_000_000, 100_000, 30_000),
    "image": Kind(
        "784 bytes, two convolutions, Dense 10",
        f"unhex(substr(repeat({HASH}, 13), 1, 1568))",
        floats(784),
        400_000,
        40_000,
        6_000,
    ),
    "text": Kind(
        "text of 100 to 1,000 characters, embedding, Dense 2",
        f"regexp_replace(substr(repeat({HASH}, 8), 1, cast(67 + id * 7919 % 601 as int)), '(..)', '$1 ')",
        f"regexp_replace(substr(repeat({HASH}, 8), 1, cast(67 + id * 7919 % 601 as int)), '(..)', '$1 ')",
        300_000,
        40_000,
        20_000,
    ),
}


def network(name):
    """Return the network of a kind of row."""
    import keras

    if name == "small":
        layers = [keras.Input((64,)), keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10)]
    elif name == "image":
        convolutions = [keras.layers.Conv2D(count, 3, strides=2, activation="relu") for count in (8, 16)]
        layers = [keras.Input((28, 28, 1)), *convolutions, keras.layers.Flatten(), keras.layers.Dense(10)]
    else:
        words = keras.layers.TextVectorization(
            standardize=None, vocabulary=[f"{number:02x}" for number in range(256)], output_sequence_length=300
        )
        pooled = [keras.layers.Embedding(258, 16), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(2)]
        layers = [keras.Input((), dtype="string"), words, *pooled]
    return keras.Sequential(layers)

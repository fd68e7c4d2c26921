"""Statistics that Spark's tasks compute of their rows when a preprocessing layer adapts to a DataFrame."""

import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

import cloudpickle
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tensorflowonspark.columns import Ragged
from tensorflowonspark.errors import FeedError
from tensorflowonspark.keras.hooks import replacing
from tensorflowonspark.keras.preprocessing import Moments, lookup_of
from tensorflowonspark.ml.distribution import prepare_tensorflow
from tensorflowonspark.ml.features import TakenColumns, features_of
from tensorflowonspark.ml.predict import this_partition
from tensorflowonspark.ml.worker_errors import short_errors

_MAX_TOKENS = 1 << 20  # in a task's memory; Spark adds up the counts that it yields
_STANDARDIZE = (None, "lower", "strip_punctuation", "lower_and_strip_punctuation")
_SPLIT = (None, "whitespace")
_PUNCTUATION = r"""[!"#$%&()\*\+,-\./:;<=>?@\[\\\]^_`{|}~\']"""  # the pattern of Keras
_WHITESPACE = r"[\t\n\v\f\r ]+"  # the pattern of TensorFlow
_TEXT_ROWS = 4096  # rows that are split in one call: a batch's tokens take many times the memory of its texts


def _values(taken: TakenColumns, batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
    """Yield the values of each batch's columns as an array; several columns are concatenated."""
    partition, row = this_partition(), 0
    for batch in batches:
        if batch.num_rows:
            named = pa.RecordBatch.from_arrays(batch.columns, list(taken.columns))
            features = features_of(taken, named, partition, row)
            yield _side_by_side(features) if isinstance(features, Mapping) else features
        row += batch.num_rows


def _side_by_side(columns: Mapping[str, Any]) -> npt.NDArray[Any]:
    arrays = [_numbers(name, each) for name, each in columns.items()]
    return np.concatenate([each[:, None] if each.ndim == 1 else each for each in arrays], axis=-1)


def _numbers(name: str, values: Any) -> npt.NDArray[Any]:
    if isinstance(values, Ragged) or values.dtype.kind not in "biuf":
        found = "rows of different lengths" if isinstance(values, Ragged) else "no numbers"
        raise FeedError(f"column {name!r} has {found}, and the layer adapts to numbers")
    return np.asarray(values)


@short_errors
def find_moments(
    taken: TakenColumns, axis: tuple[int, ...], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the moments of a task's rows, pickled; nothing if there are no rows."""
    moments: Moments | None = None
    for values in _values(taken, batches):
        numbers = _numbers(taken.columns[0], values)
        if numbers.ndim == 1 and axis:  # a column of single numbers is one feature
            numbers = numbers[:, None]
        found = Moments.of(numbers, axis)
        moments = found if moments is None else moments + found
    if moments is not None:
        yield pa.RecordBatch.from_pydict({"moments": pa.array([pickle.dumps(moments)], pa.binary())})


@short_errors
def all_numbers(taken: TakenColumns, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield all numbers of a task's rows, rounded to float32, one in each row."""
    for values in _values(taken, batches):
        flat = _numbers(taken.columns[0], values).reshape(-1).astype(np.float32)
        yield pa.RecordBatch.from_pydict({"value": pa.array(flat.astype(np.float64))})


@dataclass(frozen=True)
class Splitter:
    """Splitting of texts into tokens, equal to that of a `TextVectorization`."""

    library: str
    pickled: bytes  # the layer's class and settings, functions of the user's included
    # The settings ``standardize`` and ``split``, if Arrow has the same functions: then no task imports TensorFlow.
    plain: tuple[str | None, str | None] | None = None

    @classmethod
    def of(cls, layer: Any) -> "Splitter":
        """Return the splitter of a layer."""
        kinds = type(layer).__mro__
        library = next(each.__module__.split(".")[0] for each in kinds if each.__name__ == "TextVectorization")
        config = layer.get_config()
        kind = None if type(layer).__module__.split(".")[0] == library else type(layer)
        # A class of the user's may have settings of its own, which its get_config returns.
        settings = config if kind else {name: config[name] for name in ("standardize", "split", "encoding", "ngrams")}
        plain = config["standardize"], config["split"]
        is_plain = kind is None and config["ngrams"] is None and plain[0] in _STANDARDIZE and plain[1] in _SPLIT
        return cls(library, cloudpickle.dumps((kind, settings)), plain if is_plain else None)

    def split(self, texts: Any) -> tuple[Any, npt.NDArray[np.int64]]:
        """Return the tokens of some rows in one array, and the number of tokens of each row."""
        if self.plain is not None and not isinstance(texts, Ragged) and texts.ndim == 1:
            try:
                return _split_by_arrow(pa.array(texts, pa.string()), *self.plain)
            except pa.ArrowException:  # the bytes are not UTF-8
                pass
        return _split_by_keras(self.layer, texts)

    @cached_property
    def layer(self) -> Any:
        """A layer with these settings."""
        prepare_tensorflow()
        kind, settings = cloudpickle.loads(self.pickled)
        return (kind or import_module(self.library).layers.TextVectorization)(**settings)


@dataclass(frozen=True)
class CountTokens:
    """Function of a task's rows that yields the occurrences of each token, and the number of rows with it.

    A last row with a null for the token has the number of all rows.
    """

    taken: TakenColumns
    integers: bool  # whether tokens are integers, and not bytes
    documents: bool  # whether to count the rows that contain each token
    splitter: Splitter | None = None  # of texts into tokens

    @short_errors
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the results for a task's rows."""
        counts: dict[Any, tuple[int, int]] = {}
        rows = 0
        for tokens, lengths in self._rows_of_tokens(batches):
            rows += len(lengths)
            for token, count, documents in self._count(tokens, lengths):
                before = counts.get(token, (0, 0))
                counts[token] = before[0] + count, before[1] + documents
            if len(counts) > _MAX_TOKENS:
                yield self._batch(counts)
                counts = {}
        if rows:
            yield self._batch({**counts, None: (0, rows)})

    def _rows_of_tokens(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[Any, npt.NDArray[np.int64]]]:
        """Yield the tokens of some rows in one array, and the number of tokens of each row."""
        for values in _values(self.taken, batches):
            if self.splitter is None:
                yield _flat(values)
                continue
            for start in range(0, len(values), _TEXT_ROWS):
                yield self.splitter.split(values[start : start + _TEXT_ROWS])

    def _count(self, tokens: Any, lengths: npt.NDArray[np.int64]) -> Iterator[tuple[Any, int, int]]:
        kind = pa.int64() if self.integers else pa.binary()
        if isinstance(tokens, pa.Array):
            coded = tokens.cast(kind).dictionary_encode()
        else:
            coded = pa.array(tokens.astype(np.int64) if self.integers else tokens, kind).dictionary_encode()
        known, codes = coded.dictionary.to_pylist(), coded.indices.to_numpy(zero_copy_only=False)
        counts = np.bincount(codes, minlength=len(known))
        documents = np.zeros(len(known), np.int64)
        if self.documents and len(known):
            rows = np.repeat(np.arange(len(lengths)), lengths)
            once = np.unique(rows * len(known) + codes)
            documents = np.bincount(once % len(known), minlength=len(known))
        yield from zip(known, counts.tolist(), documents.tolist(), strict=True)

    def _batch(self, counts: Mapping[Any, tuple[int, int]]) -> pa.RecordBatch:
        kind = pa.int64() if self.integers else pa.binary()
        return pa.RecordBatch.from_pydict(
            {
                "token": pa.array(list(counts), kind),
                "count": pa.array([count for count, _ in counts.values()], pa.int64()),
                "documents": pa.array([documents for _, documents in counts.values()], pa.int64()),
            }
        )


def _flat(values: Any) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Return the values of some rows in one array, and the number of values of each row."""
    if isinstance(values, Ragged):
        bounds = values.splits[0]
        for splits in values.splits[1:]:
            bounds = splits[bounds]
        flat = values.values.reshape(-1)
        per_value = len(flat) // max(1, len(values.values))
        return flat, np.diff(bounds) * per_value
    return values.reshape(-1), np.full(len(values), values.size // len(values))


def _split_by_arrow(texts: pa.Array, standardize: str | None, split: str | None) -> tuple[Any, npt.NDArray[np.int64]]:
    if standardize in ("lower", "lower_and_strip_punctuation"):
        texts = pc.ascii_lower(texts)
    if standardize in ("strip_punctuation", "lower_and_strip_punctuation"):
        texts = pc.replace_substring_regex(texts, _PUNCTUATION, "")
    if split is None:
        return texts, np.ones(len(texts), np.int64)
    tokens = pc.split_pattern_regex(texts, _WHITESPACE)
    rows, flat = pc.list_parent_indices(tokens), tokens.flatten()
    real = pc.not_equal(flat, "")  # the empty string before a leading space
    return flat.filter(real), np.bincount(rows.filter(real).to_numpy(), minlength=len(texts))


def _split_by_keras(layer: Any, values: Any) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    import tensorflow as tf

    if isinstance(values, Ragged):
        texts = tf.RaggedTensor.from_nested_row_splits(values.values, values.splits)
    else:
        texts = tf.constant(values.reshape(len(values), -1))
    none = np.array([], object), np.array([], np.int64)
    tokens, lengths = zip(none, *map(_flat_tokens, _tokens(layer, texts)), strict=True)
    return np.concatenate(tokens), np.concatenate(lengths)


def _tokens(layer: Any, texts: Any) -> list[Any]:
    """Return the tokens with which a `TextVectorization` would update the state of its lookup, at once or in parts."""
    found: list[Any] = []

    def update_state(data: Any) -> None:
        found.append(data)

    with replacing(lookup_of(layer), "update_state", update_state):
        layer.update_state(texts)
    return found


def _flat_tokens(tokens: Any) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Return tokens, and how many each row has."""
    if hasattr(tokens, "ragged_rank"):
        if tokens.ragged_rank > 1:
            raise FeedError("TextVectorization can't split the strings of arrays: join them in Spark (array_join)")
        return tokens.flat_values.numpy().reshape(-1), tokens.row_lengths().numpy()
    flat = np.asarray(tokens)
    flat = flat if flat.ndim > 1 else flat.reshape(1, -1)  # one row, as Keras has it
    return flat.reshape(-1), np.full(len(flat), flat.size // max(1, len(flat)))

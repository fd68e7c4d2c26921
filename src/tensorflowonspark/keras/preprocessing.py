"""States of Keras's preprocessing layers: computed in parts, merged, and assigned to a layer.

A layer's state over all rows is merged from parts over some of the rows: those of a worker (`keras.adapting_together`),
or of a Spark task (`ml.spark_adapt`). Keras itself computes the results (the order of a vocabulary, the weights of
tf-idf, the boundaries of bins). Only functions that take a layer import TensorFlow, so that tasks and the driver may
import this module.
"""

import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorflowonspark.errors import RequirementError, SpecError
from tensorflowonspark.keras.hooks import replacing
from tensorflowonspark.keras.private_names import TESTED
from tensorflowonspark.keras.sublayers import direct_sublayers

_FAMILIES = ("Normalization", "Discretization", "TextVectorization", "IndexLookup")
_LIBRARIES = ("keras", "tf_keras")


@dataclass(frozen=True)
class Moments:
    """Mean and squared deviations of values, over all axes except those that a `Normalization` keeps.

    Examples
    --------
    >>> first, second = (Moments.of(np.array(rows), (-1,)) for rows in ([[1.0, 0.0]], [[3.0, 0.0], [5.0, 3.0]]))
    >>> both = first + second
    >>> both.mean.tolist(), both.variance.round(3).tolist()
    ([3.0, 1.0], [2.667, 2.0])
    """

    count: int  # values of each mean
    mean: npt.NDArray[np.float64]  # for each index of the kept axes
    deviations: npt.NDArray[np.float64]  # sums of the squared distances from the mean
    shape: tuple[int | None, ...]  # of one row's value; None for a size that varies

    @classmethod
    def of(cls, rows: Any, axis: Sequence[int]) -> "Moments":
        """Return the moments of an array whose first axis is that of the rows.

        To keep that axis, or one that does not exist, is a `SpecError`.
        """
        values = np.asarray(rows).astype(np.float64)
        if any(not -values.ndim <= each < values.ndim or each % values.ndim == 0 for each in axis):
            raise SpecError(
                f"Normalization(axis={tuple(axis)}) does not fit values of shape {values.shape[1:]}: axis 0 is that of "
                "the rows; axis=None gives one mean over all values"
            )
        keep = sorted(each % values.ndim for each in axis)
        reduced = tuple(each for each in range(values.ndim) if each not in keep)
        count = int(np.prod([values.shape[each] for each in reduced]))
        kept = tuple(values.shape[each] for each in keep)
        if not count:
            return cls(0, np.zeros(kept), np.zeros(kept), values.shape[1:])
        return cls(count, values.mean(reduced), values.var(reduced) * count, values.shape[1:])

    def __add__(self, other: "Moments") -> "Moments":
        if not self.count or not other.count:
            return other if not self.count else self
        if self.mean.shape != other.mean.shape:
            raise SpecError(f"values of shape {self.shape} and {other.shape} can't be normalized by one layer")
        count = self.count + other.count
        distance = other.mean - self.mean
        mean = self.mean + distance * (other.count / count)
        deviations = self.deviations + other.deviations + distance**2 * (self.count * (other.count / count))
        same = len(self.shape) == len(other.shape)
        shape = tuple(a if a == b else None for a, b in zip(self.shape, other.shape, strict=True)) if same else ()
        return Moments(count, mean, deviations, shape)

    @property
    def variance(self) -> npt.NDArray[np.float64]:
        """The variance, with the count as divisor, as in Keras."""
        return self.deviations / max(1, self.count)

    @staticmethod
    def merged(parts: Iterable["Moments"]) -> "Moments":
        """Return the moments of all parts together."""
        return reduce(Moments.__add__, parts)


@dataclass(frozen=True)
class TokenCounts:
    """Numbers of occurrences of each token, and of documents that contain it.

    Examples
    --------
    >>> first = TokenCounts(np.array([1, 2]), np.array([1, 5]), np.array([1, 2]), 2)
    >>> second = TokenCounts(np.array([2, 3]), np.array([1, 1]), np.array([1, 1]), 1)
    >>> both = TokenCounts.merged([first, second])
    >>> both.tokens.tolist(), both.counts.tolist(), both.documents.tolist(), both.rows
    ([1, 2, 3], [1, 6, 1], [1, 3, 1], 3)
    """

    tokens: npt.NDArray[Any]  # distinct: bytes as objects, or int64
    counts: npt.NDArray[np.int64]
    documents: npt.NDArray[np.int64]  # zeros unless the layer's output is tf-idf
    rows: int  # the number of all documents

    @staticmethod
    def merged(parts: Sequence["TokenCounts"]) -> "TokenCounts":
        """Return the counts of all parts together."""
        tokens, indices = np.unique(np.concatenate([part.tokens for part in parts]), return_inverse=True)
        counts, documents = np.zeros(len(tokens), np.int64), np.zeros(len(tokens), np.int64)
        np.add.at(counts, indices, np.concatenate([part.counts for part in parts]))
        np.add.at(documents, indices, np.concatenate([part.documents for part in parts]))
        return TokenCounts(tokens, counts, documents, sum(part.rows for part in parts))


def family_of(layer: Any) -> str:
    """Return the name of the adaptable Keras layer that a layer is, as in ``Normalization``; empty if it is none.

    Lookups of strings and of integers are one family, ``IndexLookup``.
    """
    names = [kind.__name__ for kind in type(layer).__mro__ if kind.__module__.split(".")[0] in _LIBRARIES]
    return next((name for name in names if name in _FAMILIES), "")


def lookup_of(layer: Any) -> Any:
    """Return the lookup that has a layer's vocabulary, which is within a `TextVectorization`."""
    if family_of(layer) != "TextVectorization":
        return layer
    found = [each for each in direct_sublayers(layer) if family_of(each) == "IndexLookup"]
    if not found:
        raise RequirementError(
            f"layer {layer.name!r}: the TextVectorization of this version of Keras has no lookup: install "
            f'"{TESTED["keras"]}" or "{TESTED["tf_keras"]}"'
        )
    return found[0] if len(found) == 1 else _asked(layer, found)


def _asked(layer: Any, lookups: Sequence[Any]) -> Any:
    """Return the one of several lookups which a `TextVectorization` asks for the size of its vocabulary."""
    asked: list[Any] = []

    def record(lookup: Any) -> int:
        asked.append(lookup)
        return 0

    of_keras: Any = next(kind for kind in type(layer).__mro__ if kind.__name__ == "TextVectorization")
    with ExitStack() as stack:
        for each in lookups:
            stack.enter_context(replacing(each, "vocabulary_size", partial(record, each)))
        of_keras.vocabulary_size(layer)
    return asked[0]


def fixed_reason(layer: Any) -> str:
    """Return the reason why a layer can't adapt, since it was made with its state; empty if it can."""
    family = family_of(layer)
    if family == "Normalization":
        return "it was made with mean and variance" if layer.input_mean is not None else ""
    if family == "Discretization":
        return "it was made with bin_boundaries" if layer.num_bins is None else ""
    adapts = hasattr(lookup_of(layer), "token_counts")  # not if it has a vocabulary, be it read from a file
    return "" if adapts else "it was made with a vocabulary"


def is_adapted(layer: Any) -> bool:
    """Return whether a layer has a given or computed state, or needs none."""
    family = family_of(layer)
    if not family or fixed_reason(layer):
        return True
    if family == "Normalization":
        if not layer.built:
            return False
        mean, variance = (np.asarray(each) for each in (layer.adapt_mean, layer.adapt_variance))
        return bool((mean != 0).any() or (variance != 1).any())
    if family == "Discretization":
        return bool(layer.bin_boundaries) or layer.num_bins == 1
    return int(lookup_of(layer).lookup_table.size()) > 0


def set_moments(layer: Any, moments: Moments, input_shape: Sequence[int | None] | None = None) -> None:
    """Assign the mean and variance of all rows to a `Normalization`; build it if needed.

    By default it is built for the shape of the rows. No rows, and a layer that was built for another shape, are a
    `SpecError`.
    """
    if not moments.count:
        raise SpecError(f"layer {layer.name!r} can't adapt: there are no rows")
    if not layer.built:
        layer.build(tuple(input_shape or (None, *moments.shape)))
    built_for = tuple(layer.adapt_mean.shape)
    if built_for != moments.mean.shape:
        raise SpecError(
            f"layer {layer.name!r} was built for {built_for} means, and values of shape {moments.shape} have "
            f"{moments.mean.shape}"
        )
    layer.adapt_mean.assign(moments.mean)
    layer.adapt_variance.assign(moments.variance)
    layer.finalize_state()


def set_tokens(layer: Any, counts: TokenCounts) -> None:
    """Have a lookup or a `TextVectorization` compute its vocabulary from counts of tokens."""
    import tensorflow as tf

    lookup = lookup_of(layer)
    lookup.reset_state()
    tokens = tf.constant(counts.tokens.tolist(), lookup.vocabulary_dtype)
    lookup.token_counts.insert(tokens, tf.constant(counts.counts))
    if lookup.output_mode == "tf_idf":
        lookup.token_document_counts.insert(tokens, tf.constant(counts.documents))
        lookup.num_documents.assign(counts.rows)
    lookup.finalize_state()


def set_quantiles(layer: Any, summaries: Sequence[npt.NDArray[np.float32]]) -> None:
    """Have a `Discretization` compute its boundaries from summaries of the values, by Keras's own functions."""
    base = next(kind for kind in type(layer).__mro__ if kind.__name__ == "Discretization")
    merge = sys.modules[base.__module__].merge_summaries
    merged = reduce(lambda one, other: merge(other, one, layer.epsilon), summaries)
    if hasattr(layer.summary, "assign"):  # tf_keras
        layer.summary.assign(merged)
    else:
        layer.summary = merged
    layer.finalize_state()

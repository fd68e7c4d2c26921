"""``adapt`` of preprocessing layers on several workers: each computes a part of the state, and all receive the whole.

A dataset of a feed holds one worker's rows. With Keras alone, each worker would compute another vocabulary, or another
mean. So while a layer adapts in a node, Keras's own functions count the worker's rows, and the counts of all workers
are merged before the layer computes its vocabulary, its boundaries or its mean. Keras processes other data as usual.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from tensorflowonspark.errors import FeedError
from tensorflowonspark.keras import workers
from tensorflowonspark.keras.feed_tracking import StatePass
from tensorflowonspark.keras.hooks import wrap
from tensorflowonspark.keras.preprocessing import (
    Moments,
    TokenCounts,
    family_of,
    fixed_reason,
    lookup_of,
    set_moments,
    set_quantiles,
    set_tokens,
)
from tensorflowonspark.keras.repairs import ADAPTS
from tensorflowonspark.keras.shards import is_shard

_CACHES = ("Cache", "Snapshot")  # in the names of classes of datasets
_UNBATCHED_ROWS = 128  # rows that Keras takes at a time from a dataset without batches
_WEIGHT = "sample_weight"


def wrap_layers(keras: ModuleType) -> None:
    """Wrap ``adapt`` of Keras 3's layers (called after its import)."""
    for name in ADAPTS:
        wrap(keras, name, _adapt)


def wrap_base_layer(module: ModuleType) -> None:
    """Wrap ``adapt`` of all layers of ``tf_keras`` (called after the import of the module of their base class)."""
    wrap(module, "PreprocessingLayer.adapt", _adapt)


def _adapt(wrapped: Any, layer: Any, /, *args: Any, **kwargs: Any) -> Any:
    given = inspect.signature(wrapped).bind(*args, **kwargs).arguments
    data, steps = given["data"], given.get("steps")
    if not workers.are_several() or not family_of(layer) or fixed_reason(layer) or not _in_batches(data):
        return wrapped(*args, **kwargs)
    is_share = is_shard(data)
    if is_share:
        _refuse_caches(data)
    with StatePass.begin() as state_pass:
        state = _STATES[family_of(layer)](layer)
        for number, batch in enumerate(_batches(state.prepared(data))):
            if steps is not None and number >= steps:
                break
            if not _is_empty(batch):
                state.add(batch)
    part = state.part()
    state.finish(workers.combine(_call(layer), part, state.merge) if is_share or state_pass.fed else part)
    if hasattr(layer, "_is_adapted"):  # tf_keras
        layer._is_adapted = True
    return None


def _in_batches(data: Any) -> bool:
    """Return whether data is a dataset or yields batches, as a generator does; arrays and lists don't."""
    import tensorflow as tf

    whole = isinstance(data, (np.ndarray, list, tuple)) or tf.is_tensor(data) or hasattr(data, "iloc")
    return hasattr(data, "__iter__") and not whole


def _batches(data: Any) -> Iterator[Any]:
    for batch in data:
        yield _features(batch)


def _features(batch: Any) -> Any:
    """Return the features of an element, which may have labels and weights beside them."""
    features = batch[0] if isinstance(batch, tuple) else batch
    if isinstance(features, Mapping):
        names = [name for name in features if name != _WEIGHT]
        if len(names) != 1:
            raise FeedError(
                f"adapt takes the values of one column, and the elements have {names}: select one, as in "
                f"adapt(dataset.map(lambda x, *rest: x[{names[0]!r}]))"
            )
        return features[names[0]]
    return features


def _is_empty(batch: Any) -> bool:
    shape = tuple(batch.shape if hasattr(batch, "shape") else np.shape(batch))
    return bool(shape) and shape[0] == 0


def _refuse_caches(dataset: Any) -> None:
    """Refuse a dataset that caches its elements: without padding rows, ``fit`` would not find its steps."""
    pending = [dataset]
    while pending:
        each = pending.pop()
        if any(part in type(each).__name__ for part in _CACHES):
            raise FeedError(
                "adapt was given a feed's dataset with .cache() in it, which may hold padding rows: adapt the layer on "
                "the dataset before .cache()"
            )
        pending.extend(each._inputs())


def _call(layer: Any) -> str:
    """Return a name of the call, to compare with those of the other workers; automatic names of layers may differ."""
    kind = type(layer).__name__
    snake_case = re.sub("(?<!^)(?=[A-Z])", "_", kind).lower()
    is_automatic = re.fullmatch(rf"{snake_case}(_\d+)?", layer.name)
    return f"{kind}.adapt" if is_automatic else f"{kind}.adapt (of the layer {layer.name!r})"


class _State:
    """A layer's state over this worker's rows.

    It takes data in batches (`prepared`), which are added one by one (`add`). What it then has (`part`) becomes one
    with those of all workers (`merge`), and the layer gets that (`finish`).
    """

    def __init__(self, layer: Any) -> None:
        self._layer = layer

    def prepared(self, data: Any) -> Any:
        """Return the data in batches of rows; Keras itself updates the layer with each."""
        self._layer.reset_state()
        return data


class _Normalization(_State):
    def prepared(self, data: Any) -> Any:
        self._moments: list[Moments] = []
        self._spec = getattr(data, "element_spec", None)
        shape = self._shape()
        if shape is not None and (not shape or (len(shape) == 1 and shape[0] is not None)):
            data = data.batch(_UNBATCHED_ROWS)  # as Keras does
            self._spec = data.element_spec
        return data

    def _shape(self) -> tuple[int | None, ...] | None:
        shape = getattr(_features(self._spec), "shape", None) if self._spec is not None else None
        return None if shape is None or shape.rank is None else tuple(shape)

    def add(self, batch: Any) -> None:
        if hasattr(batch, "nrows"):
            raise FeedError(f"layer {self._layer.name!r} can't adapt to ragged rows: Normalization takes dense ones")
        moments = Moments.of(batch, self._layer.axis)
        self._moments = [Moments.merged([*self._moments, moments])]

    def part(self) -> list[Moments]:
        return self._moments

    def merge(self, parts: list[list[Moments]]) -> list[Moments]:
        moments_of_all = [moments for part in parts for moments in part]
        return [Moments.merged(moments_of_all)] if moments_of_all else []

    def finish(self, merged: list[Moments]) -> None:
        if not merged:
            raise FeedError(f"layer {self._layer.name!r} can't adapt: no worker has any rows")
        set_moments(self._layer, merged[0], self._shape())


class _Discretization(_State):
    def add(self, batch: Any) -> None:
        self._build()
        self._layer.update_state(batch)

    def _build(self) -> None:
        if not hasattr(self._layer, "summary"):  # tf_keras has it as a variable
            self._layer.build((None, 1))

    def part(self) -> list[Any]:
        self._build()
        return [np.asarray(self._layer.summary)]

    def merge(self, parts: list[list[Any]]) -> list[Any]:
        return [each for part in parts for each in part if each.shape[1]]

    def finish(self, merged: list[Any]) -> None:
        set_quantiles(self._layer, merged or self.part())


class _Tokens(_State):
    def add(self, batch: Any) -> None:
        self._layer.update_state(batch)

    def part(self) -> TokenCounts:
        lookup = lookup_of(self._layer)
        tokens, counts = (each.numpy() for each in lookup.token_counts.export())
        if lookup.output_mode != "tf_idf":
            return TokenCounts(tokens, counts, np.zeros_like(counts), 0)
        documents = lookup.token_document_counts.lookup(tokens).numpy()
        return TokenCounts(tokens, counts, documents, int(lookup.num_documents.numpy()))

    def merge(self, parts: list[TokenCounts]) -> TokenCounts:
        return TokenCounts.merged(parts)

    def finish(self, merged: TokenCounts) -> None:
        set_tokens(self._layer, merged)


_STATES: Mapping[str, Callable[[Any], Any]] = {
    "Normalization": _Normalization,
    "Discretization": _Discretization,
    **dict.fromkeys(("TextVectorization", "IndexLookup"), _Tokens),
}

"""Batches of a feed as NumPy arrays, for programs without TensorFlow."""

from collections.abc import Callable, Iterator
from typing import Any

from tensorflowonspark import columns
from tensorflowonspark.errors import FeedError
from tensorflowonspark.node.feed.pace import Measure
from tensorflowonspark.node.feed.passes import Passes


class Batches:
    """Batches of NumPy arrays; each iteration over them is one epoch.

    Notes
    -----
    Calling it starts an epoch too, as ``tf.data.Dataset.from_generator`` does.
    """

    reads_feed = True  # for `keras.provenance`, which must not take an element to find out

    def __init__(self, passes: Passes, measure: Measure | None = None) -> None:
        self.passes = passes
        self._selection = passes.selection
        self._measure = measure

    def element_spec(self, make: Callable[[tuple[int, ...], str], Any]) -> Any:
        """Return an element with the result of `make` for the shape of a row, and the dtype, of each column.

        A size that may be another one in each batch is the largest. A column that is ragged, or holds strings, is a
        `FeedError`.
        """
        for name, kind in self._selection.kinds.items():
            if kind.row_splits or kind.dtype.kind == "O":
                what = "ragged" if kind.ragged else "of strings"
                raise FeedError(f"column {name!r} is {what}: a model on JAX takes arrays of numbers of one shape")
        selection = self._selection

        def made(shape: tuple[int | None, ...], dtype: str) -> Any:
            return make(tuple(selection.longest if size is None else size for size in shape), dtype)

        values = {name: made(kind.shape, kind.dtype.name) for name, kind in selection.kinds.items()}
        return selection.arrange(values, made(selection.weight_shape, selection.weight_dtype))

    def __iter__(self) -> Iterator[Any]:
        """Start an epoch."""
        real_only = self.passes.observer.adapts()
        elements = self._elements(real_only)
        yield from elements if self._measure is None or real_only else self._measure(elements, lambda _: 1)

    def _elements(self, real_only: bool) -> Iterator[Any]:
        for batch in self.passes(real_only=real_only):
            self.passes.observer.note_read()
            finished = self._selection.finished(batch)
            values = {
                name: each.rows() if isinstance(each, columns.Ragged) else each for name, each in finished[0].items()
            }
            yield self._selection.arrange(values, self._selection.weights(finished))

    __call__ = __iter__

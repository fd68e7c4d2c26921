"""The layers within a layer or a model, by its attributes; works with Keras 3 and tf_keras, and imports neither."""

from collections.abc import Iterator
from typing import Any


def direct_sublayers(layer: Any) -> Iterator[Any]:
    """Yield the layers among a layer's attributes, and in lists, tuples and dicts there, in order; each once.

    Parameters
    ----------
    layer : keras.layers.Layer
        The layer, or a model.

    Examples
    --------
    >>> layer = keras.layers.Bidirectional(keras.layers.LSTM(2))
    >>> [each.name for each in direct_sublayers(layer)]
    ['forward_lstm', 'backward_lstm']
    """
    found = {id(each): each for each in _layers_in(vars(layer), _layer_class(layer))}
    yield from (each for each in found.values() if each is not layer)


def all_sublayers(layer: Any) -> Iterator[Any]:
    """Yield a layer, the layers among its attributes, and those within these; each once."""
    seen: set[int] = set()
    pending = [layer]
    while pending:
        each = pending.pop()
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            pending.extend(reversed([*direct_sublayers(each)]))


def _layer_class(layer: Any) -> type:
    """Return the class of its library from which each layer derives."""
    return next(kind for kind in reversed(type(layer).__mro__) if kind.__name__ == "Layer")


def _layers_in(value: Any, kind: type) -> Iterator[Any]:
    if isinstance(value, kind):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _layers_in(each, kind)
    elif isinstance(value, (list, tuple, set)):
        for each in value:
            yield from _layers_in(each, kind)

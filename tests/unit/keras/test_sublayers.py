"""The layers within a layer, found by its attributes: those that Keras tracks."""

import importlib

import pytest

from tensorflowonspark.keras.sublayers import all_sublayers, direct_sublayers
from tensorflowonspark.ml.preprocessing_layers import adaptable_layers


def _dense(library, name):
    return library.layers.Dense(1, name=name)


def _in_lists(library):
    class Outer(library.layers.Layer):
        def __init__(self):
            super().__init__()
            self.one = _dense(library, "one")
            self.some = [_dense(library, "two"), {"key": _dense(library, "three")}]
            self.again = self.one
            self.numbers = {"four": (4, None)}

    return Outer()


def _parent_and_child(library):
    outer = library.layers.Layer()
    outer.inner = library.layers.Layer(name="inner")
    outer.inner.outer = outer
    return outer


_LAYERS = {
    "a layer without layers": (_dense, []),
    "attributes, lists and dicts": (_in_lists, ["one", "two", "three"]),
    "a wrapper": (lambda library: library.layers.TimeDistributed(_dense(library, "inner")), ["inner"]),
    "layers that hold each other": (_parent_and_child, ["inner"]),
    "a model": (lambda library: library.Sequential([_dense(library, "first"), _dense(library, "second")]),
                ["first", "second"]),
    "a model of functions": (lambda library: _functional(library), ["in", "outer", "last"]),
}  # fmt: skip


def _functional(library):
    inputs = library.Input((2,), name="in")
    nested = library.Sequential([library.Input((2,)), _dense(library, "nested")], name="outer")
    return library.Model(inputs, _dense(library, "last")(nested(inputs)))


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
@pytest.mark.parametrize(("make", "expected"), _LAYERS.values(), ids=_LAYERS)
def test_the_layers_within_a_layer_are_found_once_and_in_order(library, make, expected):
    library = pytest.importorskip(library)
    layer = make(library) if make is not _dense else make(library, "only")
    assert [each.name for each in direct_sublayers(layer)] == expected


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
@pytest.mark.parametrize("make", [_in_lists, _functional, _parent_and_child])
def test_all_that_keras_tracks_are_found(library, make):
    layer = make(importlib.import_module(library))
    found = [*all_sublayers(layer)]
    assert found[0] is layer
    assert len({id(each) for each in found}) == len(found)
    assert {id(each) for each in layer._flatten_layers()} <= {id(each) for each in found}


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
@pytest.mark.parametrize("other", [lambda library: 3, lambda library: [_dense(library, "dense")]])
def test_a_layer_that_calls_an_attribute_layers_hides_none(library, other):
    library = importlib.import_module(library)

    class Block(library.layers.Layer):
        def __init__(self):
            super().__init__()
            self.layers = other(library)
            self.scaled = library.layers.Normalization(name="scaled")

    assert [each.name for each in adaptable_layers(library.Sequential([Block()]))] == ["scaled"]

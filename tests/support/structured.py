"""Models whose inputs and outputs are dicts and lists, nested or not, whose keys are not the names of their layers."""

from importlib import import_module

import numpy as np


def structured(library="keras", kind="dicts"):
    """Return a model of ``left + 10 * right``, with inputs and outputs in a structure."""
    keras = import_module(library)
    one, two, three = (keras.Input((1,), name=f"layer_{number}") for number in range(3))
    dense = [keras.layers.Dense(1, use_bias=False, name=f"out_{number}") for number in range(3)]
    if kind == "dicts":
        model = keras.Model({"right": two, "left": one}, {"z": dense[0](one), "a": dense[1](two)})
        loss = {"z": "mse", "a": "mae"}
    elif kind == "one key":
        model, loss = keras.Model({"right": one}, {"z": dense[0](one)}), "mse"
    elif kind == "nested":
        outputs = {"z": dense[0](one), "a": [dense[1](two), dense[2](three)]}
        model = keras.Model({"right": three, "left": [one, two]}, outputs)
        loss = {"z": "mse", "a": ["mse", "mae"]}
    else:
        model, loss = keras.Model([one, two], [dense[0](one), dense[1](two)]), ["mse", "mae"]
    for number, each in enumerate(dense):
        if each.built:
            each.set_weights([np.array([[10.0**number]])])
    model.compile("sgd", loss)
    return model

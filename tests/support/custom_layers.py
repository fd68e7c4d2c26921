"""Models with a layer of the user's own."""


def layer(name="Scale"):
    import keras

    class Local(keras.layers.Layer):
        def call(self, x):
            return 3 * x

    Local.__name__ = Local.__qualname__ = name
    return Local


def model_of(*layers, **compiled):
    import keras

    model = keras.Sequential([keras.Input((1,)), *(each() for each in layers), keras.layers.Dense(1)])
    if compiled:
        model.compile(**compiled)
    return model

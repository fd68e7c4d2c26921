"""A network of one layer, of numbers or strings, and a custom metric."""


def network(dtype="float32", inputs=1):
    import keras

    columns = [keras.Input((1,), dtype=dtype, name=f"in_{number}") for number in range(inputs)]
    if dtype == "string":
        numbers = [keras.layers.StringLookup(vocabulary=["a", "b"])(each) for each in columns]
        numbers = [keras.layers.Lambda(lambda x: keras.ops.cast(x, "float32"))(each) for each in numbers]
    else:
        numbers = columns
    joined = keras.layers.Concatenate()(numbers) if inputs > 1 else numbers[0]
    model = keras.Model(columns, keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")(joined))
    model.compile("sgd", "mse")
    return model


def misses(name):
    """Return a custom metric: the number of predictions that are off by more than one."""
    import keras

    class Misses(keras.metrics.Metric):
        def __init__(self, **options):
            super().__init__(**options)
            self.count = self.add_weight(shape=(), initializer="zeros", name="count")

        def update_state(self, truth, prediction, sample_weight=None):
            far = keras.ops.abs(keras.ops.reshape(truth, (-1, 1)) - prediction) > 1
            self.count.assign_add(keras.ops.sum(keras.ops.cast(far, "float32")))

        def result(self):
            return self.count

    return Misses(name=name)

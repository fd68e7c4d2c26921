"""A layer in a module that a logged model's code is taken from: it imports neither this package nor Spark."""

import keras

from tests.support.served_numbers import THREE


@keras.saving.register_keras_serializable("served")
class Scale(keras.layers.Layer):
    """Multiplies by a number."""

    def __init__(self, by=THREE, **options):
        super().__init__(**options)
        self.by = by

    def get_config(self):
        """Return the number too."""
        return {**super().get_config(), "by": self.by}

    def call(self, x):
        """Return the product."""
        return x * self.by

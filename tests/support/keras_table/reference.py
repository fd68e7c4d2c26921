"""One process with plain Keras, without anything of TensorFlowOnSpark: what all columns are compared with."""

import sys

import keras

from tests.support.keras_table import cells
from tests.support.keras_table.columns import ONE_PROCESS, ONE_PROCESS_ON_JAX, Column


def main(directory, *keys):
    cells.load()
    name = ONE_PROCESS_ON_JAX if keras.config.backend() == "jax" else ONE_PROCESS
    cells.run_cells(Column(name, directory), keys or list(cells.ALL), directory)
    assert not [name for name in sys.modules if name.startswith("tensorflowonspark")]


if __name__ == "__main__":
    main(*sys.argv[1:])

"""One process with plain Keras, without anything of TensorFlowOnSpark: what all columns are compared with."""

import sys

from tests.support.keras_table import cells
from tests.support.keras_table.columns import ONE_PROCESS, Column


def main(directory, *keys):
    cells.load()
    cells.run_cells(Column(ONE_PROCESS, directory), keys or list(cells.ALL), directory)
    assert not [name for name in sys.modules if name.startswith("tensorflowonspark")]


if __name__ == "__main__":
    main(*sys.argv[1:])

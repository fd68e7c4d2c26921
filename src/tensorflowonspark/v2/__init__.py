"""Programs of TensorFlowOnSpark 2.x: a translation of its public names to this project's.

``names`` holds the modules that programs import (``tensorflowonspark.TFCluster`` and eleven others), this package their
internals. The package ``tensorflowonspark`` adds the folder ``names`` to its ``__path__``, so the modules there have no
other name. They import each other by relative imports and all else by its full name. No other part of the project
imports this package.
"""

"""The public modules of TensorFlowOnSpark 2.x, imported as ``tensorflowonspark.TFCluster`` and so on."""

__path__ = []  # each module has one identity: `tensorflowonspark.v2.names.TFCluster` is not importable

"""The queues of TensorFlowOnSpark 2.x: there are none any more, and whoever looks for one is told what to use."""

from ._old import gone_names

__all__: list[str] = []

__getattr__ = gone_names(__name__, "ctx.get_data_feed() in a node, and tensorflowonspark.Cluster in the driver")

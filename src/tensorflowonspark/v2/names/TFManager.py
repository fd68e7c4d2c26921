"""The queue manager of 2.x, which has no equivalent: each of its names raises and names the replacement."""

from tensorflowonspark.v2.deprecation import removed_names

__all__: list[str] = []

__getattr__ = removed_names(__name__, "ctx.get_data_feed() in a node, and tensorflowonspark.Cluster in the driver")

"""What TensorFlowOnSpark 2.x put between rows in its queues; nothing uses it here, but programs may import it."""

__all__ = ["EndPartition", "Marker"]


class Marker:
    """Something in a queue that is no row."""


class EndPartition(Marker):
    """The end of a partition."""

"""Markers between the rows in the queues of 2.x: unused, but programs may import them."""

__all__ = ["EndPartition", "Marker"]


class Marker:
    """An element of a queue that is not a row."""


class EndPartition(Marker):
    """The end of a partition."""

"""Who reads the data of a cluster."""

__all__ = ["InputMode"]


class InputMode:
    """Who reads the data."""

    TENSORFLOW = 0  # the programs themselves
    SPARK = 1  # Spark, which feeds them

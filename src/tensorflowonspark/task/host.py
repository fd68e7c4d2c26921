"""What an executor's environment says of the host that it is on."""

import os

__all__ = ["given_address", "local_directory"]


def given_address() -> str:
    """Return the address that the host's administrator gave to Spark; none if that means all of them."""
    given = os.environ.get("SPARK_LOCAL_IP", "")
    return given if given.strip("0.:") else ""


def local_directory() -> str:
    """Return where Spark keeps temporary files, which go with the executor; none outside of executors."""
    return os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]

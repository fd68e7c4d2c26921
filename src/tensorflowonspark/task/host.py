"""What an executor's environment says of the host that it is on."""

import os

__all__ = ["LOCAL_DIRECTORIES", "given_address", "local_directory"]

LOCAL_DIRECTORIES = "SPARK_LOCAL_DIRS"


def given_address() -> str:
    """Return the address that the host's administrator gave to Spark; none if that means all of them."""
    given = os.environ.get("SPARK_LOCAL_IP", "")
    return given if given.strip("0.:") else ""


def local_directory() -> str:
    """Return where temporary files belong: on an executor Spark's own, which goes with it; in a node one of its own."""
    return os.environ.get(LOCAL_DIRECTORIES, "").split(",")[0]

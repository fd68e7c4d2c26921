"""Where the driver listens: the one address at which every supervisor calls."""

import os
from typing import TYPE_CHECKING

from tensorflowonspark.errors import StartError
from tensorflowonspark.transport import ChannelHandler, ConnectionLost, Credentials, Server

if TYPE_CHECKING:
    from pyspark import SparkContext

__all__ = ["listen"]


def listen(
    context: "SparkContext", credentials: Credentials, on_channel: ChannelHandler
) -> tuple[Server, tuple[str, int]]:
    """Start the driver's server; return it with the address that executors call.

    The address is Spark's own (``spark.driver.host``), at which executors reach the driver anyway;
    ``TFOS_SERVER_HOST`` and ``TFOS_SERVER_PORT`` (a port, or a range like ``4000-4010``) override it.
    """
    conf = context.getConf()
    advertised = os.environ.get("TFOS_SERVER_HOST") or conf.get("spark.driver.host") or "localhost"
    bind = os.environ.get("TFOS_SERVER_HOST") or conf.get("spark.driver.bindAddress") or advertised
    wanted = os.environ.get("TFOS_SERVER_PORT", "0")
    directory = str(getattr(context, "_temp_dir", None) or "")  # Spark removes it when the application ends
    for port in _ports(wanted):
        try:
            server = Server((bind, port), credentials, directory=directory, on_channel=on_channel)
        except (ConnectionLost, OSError):
            continue
        return server, (advertised, int(server.port))
    raise StartError(
        f"the driver can't listen at {bind}, port {wanted if wanted != '0' else 'any'}: set TFOS_SERVER_HOST to an "
        "address of this machine that executors can reach, and TFOS_SERVER_PORT to a free port or a range of ports"
    )


def _ports(text: str) -> range:
    low, _, high = text.partition("-")
    try:
        return range(int(low), int(high or low) + 1)
    except ValueError:
        raise StartError(f"TFOS_SERVER_PORT={text!r}: expected a port or a range like 4000-4010") from None

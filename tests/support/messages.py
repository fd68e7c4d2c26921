"""Messages to nodes and to the driver, as a process gets them that stands for a supervisor."""

from tensorflowonspark.transport import Sealed
from tensorflowonspark.transport.pickled import unpack


def opened(message):
    """Return a message as its receiver gets it from the supervisor."""
    return unpack(message.content.data) if isinstance(message, Sealed) else message

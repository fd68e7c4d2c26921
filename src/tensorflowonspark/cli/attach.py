"""``tfos attach``: pdb in this terminal, for a node that waits in ``breakpoint()``."""

import argparse
import os
import select
import sys
from collections.abc import Iterator
from typing import Any

from tensorflowonspark.driver.attaching import Attach, Typed, Waiting, open_clusters
from tensorflowonspark.driver.breakpoints import TerminalEnded
from tensorflowonspark.errors import ClusterError, SpecError
from tensorflowonspark.messages import DebuggerOutput
from tensorflowonspark.terminal import printable
from tensorflowonspark.transport import Channel, ConnectionLost

_READ_BYTES = 1 << 16


def add_to(commands: Any) -> None:
    """Add the subcommand to those of a parser."""
    parser = commands.add_parser(
        "attach",
        help="pdb for a node that waits in breakpoint()",
        description="Connect this terminal to pdb in a node that waits in breakpoint(), on the driver's host and as "
        "its user. The cluster needs tfos run --breakpoints, or Nodes(breakpoints=True). c has the program go on, and "
        "so has the end of this command; q ends the program.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "node", metavar="NODE", nargs="?", default="", help="as worker:0; by default the one that waits"
    )
    parser.add_argument("--cluster", metavar="NAME", default="", help="the cluster's name, if nodes of several wait")
    parser.set_defaults(run=_attach, parser=parser)


def _attach(options: argparse.Namespace) -> int:
    channel, cluster, node = _chosen(options.node, options.cluster)
    print(f"{node} of {cluster.cluster or 'the cluster'}, at {cluster.places[node]}", file=sys.stderr)
    channel.send(Attach(node))
    try:
        ended = _talk(channel)
    finally:
        channel.close()
    print(printable(ended.reason), file=sys.stderr)
    return 0 if ended.goes_on else 1


def _chosen(node: str, cluster: str) -> tuple[Channel, Waiting, str]:
    """Return the one node that is meant, with its cluster; the connections to others are closed."""
    try:
        there = list(open_clusters())
    except (OSError, RuntimeError) as error:
        raise ClusterError(f"the user's cache, which has the addresses of clusters, can't be used: {error}") from error
    waiting = [(channel, each, name) for channel, each in there for name in each.places]
    found = [each for each in waiting if node in ("", each[2]) and cluster in ("", each[1].cluster)]
    for channel, _ in there:
        if len(found) != 1 or channel is not found[0][0]:
            channel.close()
    if len(found) == 1:
        return found[0]
    wanted = f"{node or 'no node'}{f' of {cluster}' if cluster else ''}"
    names = ", ".join(f"{name} of {each.cluster or 'a cluster'} at {each.places[name]}" for _, each, name in waiting)
    if found:
        raise SpecError(f"several nodes wait: {names}: name one, and its cluster with --cluster NAME")
    reason = f"what waits is {names}" if names else (
        f"of {len(there)} clusters that take terminals no node waits" if there else
        "this user runs no cluster with breakpoints=True on this host, which must be the driver's"
    )  # fmt: skip
    raise SpecError(f"{wanted} waits in breakpoint(): {reason}" if not node else f"{wanted} does not wait: {reason}")


def _talk(channel: Channel) -> TerminalEnded:
    """Pass lines and output on, until the program goes on or the input ends."""
    typed, poll, incoming = b"", select.poll(), channel.arriving()
    for each in (sys.stdin.fileno(), channel.fileno()):
        poll.register(each, select.POLLIN)
    try:
        ended = _shown(incoming)
        while ended is None:
            for descriptor, _ in poll.poll():
                if descriptor == channel.fileno():
                    ended = ended or _shown(incoming)
                    continue
                data = os.read(descriptor, _READ_BYTES)
                *lines, typed = (typed + data).split(b"\n")
                for line in lines:
                    channel.send(Typed(f"{line.decode(errors='replace')}\n"))
                if not data:
                    channel.send(Typed(None))  # after the lines before it
                    poll.unregister(descriptor)
    except KeyboardInterrupt:
        return TerminalEnded("interrupted: the program goes on")
    except ConnectionLost:
        return TerminalEnded("the cluster has ended", goes_on=False)
    return ended


def _shown(incoming: Iterator[Any]) -> TerminalEnded | None:
    """Print what has come; return the end, if that has."""
    for message in incoming:
        if isinstance(message, TerminalEnded):
            return message
        if not isinstance(message, DebuggerOutput):
            return None
        print(printable(message.text), end="", flush=True)
    return None

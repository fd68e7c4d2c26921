"""The Python stacks of a running cluster's nodes, live: one text of what their supervisors answer in a bounded time."""

import time
from collections.abc import Callable
from itertools import count

from tensorflowonspark.driver.nodes import Node, NodeState, Roster
from tensorflowonspark.messages import Stacks, StacksRequest
from tensorflowonspark.secrecy import without_secrets
from tensorflowonspark.terminal import plain

_SECONDS = 5.0  # for all supervisors to answer; each takes 3 s at most
_CHARACTERS = 200_000  # of one node
_WHY_NOT = {
    NodeState.AWAITED: "its supervisor has not connected yet",
    NodeState.RESTARTING: "it is started again",
}


class StackCollection:
    """Requests the stacks of nodes, and collects the answers."""

    def __init__(self, roster: Roster, wait: Callable[[Callable[[], bool], float], bool]) -> None:
        self._roster = roster
        self._wait = wait
        self._numbers = count(1)
        self._answers: dict[int, dict[int, Stacks]] = {}  # by request and node

    def receive(self, node: Node, answer: Stacks) -> None:
        """Take the first answer of a node to a request; in an event."""
        self._answers.get(answer.number, {}).setdefault(node.number, answer)

    def collect(self, name: str = "", seconds: float = _SECONDS) -> str:
        """Return the stacks as a text, without secrets; of nodes that send none it has the reasons.

        By default these are the stacks of all nodes.
        """
        number, begin = next(self._numbers), time.monotonic()
        answers = self._answers[number] = {}
        nodes = [node for node in self._roster.nodes if name in ("", str(node.role))]
        for node in nodes:
            self._roster.send(node.number, StacksRequest(number))
        self._wait(lambda: all(node.number in answers or node.process.channel is None for node in nodes), seconds)
        del self._answers[number]
        late = f"its supervisor has not answered within {time.monotonic() - begin:.0f} s"
        found = [(node, answers.get(node.number, Stacks(number, problem=_why_not(node, late)))) for node in nodes]
        missing = [f"{node.role} on {node.host} sent none: {each.problem}" for node, each in found if each.problem]
        parts = [f"==== {node.role} on {node.host}\n\n{each.text}" for node, each in found if not each.problem]
        head = f"Python stacks of {len(parts)} of {len(nodes)} nodes, {time.strftime('%Y-%m-%d %H:%M:%S %Z')}"
        return "\n\n".join(map(_shown, ["\n".join([head, *missing]), *parts])) + "\n"


def _why_not(node: Node, late: str) -> str:
    return late if node.process.channel is not None else _WHY_NOT.get(node.state, "its process has ended")


def _shown(text: str) -> str:
    """Return what may be shown of a node's text."""
    return without_secrets(plain(text[:_CHARACTERS])).rstrip()

"""Calls that all workers make: who waits in one, and who never comes.

A worker that will never make the call fails the cluster, since the others wait for it. Where a worker is started again
alone, the others wait for its new process in the calls that its former one has not made. The new process makes the
earlier calls too, which must be the same.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from itertools import permutations

from tensorflowonspark.config import Role
from tensorflowonspark.driver.nodes import Node
from tensorflowonspark.errors import FailureKind
from tensorflowonspark.messages import Failed


class Kind(Enum):
    """A kind of call, with the remedy if not all workers make it."""

    COLLECTIVE = (
        "call adapt, fit, ctx.read_parquet and its like, datasets with pack, and the checkpoint (on JAX evaluate too) "
        "on all workers, as often and in the same order: each gives its own part, and gets the state of all"
    )
    FILES = (
        "call ctx.read_tfrecord, ctx.read_parquet, ctx.read_delta and ctx.read_iceberg on all workers, as often "
        "and in the same order, with the same arguments; name the version of a table to which others write"
    )

    def failure(self, reason: str) -> Failed:
        """Return the failure of a worker that does not make such a call as the others do."""
        return Failed(FailureKind.RAISED, reason, self.value)


class Rendezvous:
    """The calls that some workers have made and others have not; `keeps`: workers may be started again alone."""

    def __init__(self, *, keeps: bool = False) -> None:
        self._keeps = keeps
        self._pending: dict[tuple[Kind, int], dict[Role, str]] = {}  # the calls, by kind and number, and by worker
        self._completed: dict[tuple[Kind, int], str] = {}  # those that all have made

    def enter(self, kind: Kind, number: int, node: Node, call: str) -> Failed | None:
        """Note a worker's call; return a failure if another worker has made a different one in its place."""
        former = self._completed.get((kind, number))
        if former is not None:
            if call == former:
                return None
            return kind.failure(f"its program called {call} after its restart, and all workers {former} in its place")
        calls = self._pending.setdefault((kind, number), {})
        calls[node.role] = call
        other = next(iter(calls.values()))
        if call == other:
            return None
        return kind.failure(f"its program called {call}, and another worker's {other} in its place")

    def complete(self, kind: Kind, number: int, workers: Sequence[Node]) -> bool:
        """Return whether all workers have made a call, which is then no longer pending."""
        calls = self._pending.get((kind, number), {})
        if not calls or any(each.role not in calls for each in workers):
            return False
        del self._pending[kind, number]
        if self._keeps:
            self._completed[kind, number] = next(iter(calls.values()))
        return True

    def leave(self, node: Node) -> None:
        """Forget the pending calls of a worker that is started again: it makes them once more."""
        for place in [place for place, calls in self._pending.items() if calls.pop(node.role, None) and not calls]:
            del self._pending[place]

    def find_absent(self, workers: Sequence[Node]) -> Failed | None:
        """Return a failure if a worker will not make a call for which others wait."""
        for (kind, _), calls in self._pending.items():
            feeds = [each.feed.wanted for each in workers if each.role in calls and each.feed.wanted is not None]
            feed = min(feeds, default=math.inf)  # in which the others wait: who asks for a later one is done with it
            for each in workers:
                if each.role not in calls and (each.program.returned or (each.feed.wanted or 0) > feed):
                    action = "returned" if each.program.returned else "asked for the next feed"
                    return kind.failure(f"the program of {each.role} {action} without {_awaited(calls)}")
        return None

    def find_crossed(self, node: Node) -> Failed | None:
        """Return a failure if a node waits in one kind of call for another worker that waits in another kind for it."""
        for ((kind, _), mine), ((other_kind, _), its) in permutations(self._pending.items(), 2):
            if kind is other_kind or node.role not in mine or node.role in its:
                continue
            apart = next((role for role in its if role not in mine), None)
            if apart is not None:
                reason = f"its program called {mine[node.role]}, and another worker's {its[apart]} in its place"
                return Kind.FILES.failure(reason)  # one of the two reads files
        return None

    def explain(self, node: Node, failure: Failed) -> Failed:
        """Return the failure of a node that hangs, with the call for which others wait, if there is one."""
        for (kind, _), calls in self._pending.items():
            if node.role not in calls:
                return replace(failure, reason=f"{failure.reason}, without {_awaited(calls)}", advice=kind.value)
        return failure


def _awaited(calls: dict[Role, str]) -> str:
    return f"{next(iter(calls.values()))}, for which {', '.join(map(str, calls))} waits"

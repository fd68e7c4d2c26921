"""Rebalancing of skewed shards: which node gives how many rows to which."""

from collections.abc import Mapping

__all__ = ["plan_moves"]

# Rows move only where it saves steps: partitions of equal size by Spark's measure differ by some percent.
_TOLERANCE = 1.05


def plan_moves(rows: Mapping[int, int]) -> list[tuple[int, int, int]]:
    """Return the moves (giver, taker, rows) after which all nodes have as many rows, or one more.

    Parameters
    ----------
    rows : mapping of int to int
        How many rows each node has.

    Examples
    --------
    >>> plan_moves({0: 100, 1: 10, 2: 10})
    [(0, 1, 30), (0, 2, 30)]
    >>> plan_moves({0: 100, 1: 98})
    []
    """
    total, nodes = sum(rows.values()), len(rows)
    if max(rows.values(), default=0) <= _TOLERANCE * total / max(1, nodes):
        return []
    # The nodes with most rows keep what can't be divided.
    ordered = sorted(rows, key=lambda node: -rows[node])
    share = {node: total // nodes + (place < total % nodes) for place, node in enumerate(ordered)}
    lacking = {node: share[node] - rows[node] for node in sorted(rows) if rows[node] < share[node]}
    moves = []
    for giver in sorted(rows):
        spare = rows[giver] - share[giver]
        for taker in list(lacking):
            moved = min(spare, lacking[taker])
            if moved > 0:
                moves.append((giver, taker, moved))
                spare -= moved
                lacking[taker] -= moved
    return moves

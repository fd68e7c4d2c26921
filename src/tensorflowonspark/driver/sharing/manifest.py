"""Split manifests: what each node has of a feed, where it is, and the moves that balance skewed shards."""

from collections.abc import Mapping, Sequence

from tensorflowonspark.columns import merge
from tensorflowonspark.driver.nodes import Node
from tensorflowonspark.feed_messages import CacheConfig, Layout, Move, PartitionSlice, PartSummary, SplitManifest
from tensorflowonspark.messages import NodeEndpoint

# Partitions of equal size by Spark's measure differ by some percent. Moving rows must save steps to be worth it.
_TOLERANCE = 1.05


def node_endpoints(nodes: Sequence[Node], driver: tuple[str, int] = ("", 0)) -> tuple[NodeEndpoint, ...]:
    """Return the endpoints of nodes; tasks ask the driver at its address for the cause when a node is lost."""
    return tuple(NodeEndpoint(node.number, str(node.role), node.host, node.process.ready, driver) for node in nodes)


def build_manifests(
    parts: Sequence[PartSummary],
    endpoints: Sequence[NodeEndpoint],
    taker: CacheConfig | None = CacheConfig(),  # noqa: B008 - frozen
    readers: Sequence[int] = (),
    fingerprint: int = 0,
) -> dict[int, SplitManifest]:
    """Return the manifest of one split for each node, by its number: the totals, and the parts and moves of that node.

    Of the parts that count there is one for each partition with rows, or several that follow each other. Rows
    move to where their `taker` keeps them, if there is one; `readers` are not fed, but need the totals.
    """
    ordered = sorted(parts, key=lambda each: each.part)
    rows = {each.number: sum(part.rows for part in parts if part.number == each.number) for each in endpoints}
    columns = merge(part.columns for part in ordered)
    schema = next((part.schema for part in ordered if part.schema), b"")
    moves = [] if taker is None else _moves(rows, endpoints, taker)
    layout = _layout(ordered, list(rows), moves)
    for move in moves:
        rows[move.giver] -= move.rows
        rows[move.taker] += move.rows
    return {
        number: SplitManifest(
            rows,
            tuple((each.part, each.attempt) for each in ordered if each.number == number),
            columns,
            schema,
            tuple(move for move in moves if number in (move.giver, move.taker)),
            fingerprint,
            layout,
        )
        for number in (*rows, *readers)
    }


def _moves(rows: dict[int, int], endpoints: Sequence[NodeEndpoint], cache: CacheConfig) -> list[Move]:
    by_number = {each.number: each for each in endpoints}
    return [
        Move(giver, taker, count, by_number[taker].host, by_number[taker].ready, cache)
        for giver, taker, count in plan_moves(rows)
    ]


def _layout(parts: Sequence[PartSummary], numbers: Sequence[int], moves: Sequence[Move]) -> Layout:
    """Return where the rows of parts are, in the order of the nodes' numbers."""
    mixed = any(part.shares for part in parts)
    slices: list[dict[int, PartitionSlice]] = [{} for _ in numbers]
    for part in (each for each in parts if each.number in numbers):
        own = slices[numbers.index(part.number)]
        for each in part.contents:
            had = own.get(each.partition, PartitionSlice(each.partition, each.first, 0, len(numbers) if mixed else 1))
            own[each.partition] = had._replace(first=min(had.first, each.first), rows=had.rows + each.rows)
    return Layout(
        tuple(tuple(each for _, each in sorted(own.items()) if each.rows) for own in slices),
        tuple((numbers.index(move.giver), numbers.index(move.taker), move.rows) for move in moves),
        mixed,
    )


def plan_moves(rows: Mapping[int, int]) -> list[tuple[int, int, int]]:
    """Return the moves (giver, taker, rows) after which the row counts of all nodes differ by at most one.

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
    # The nodes with the most rows keep the remainder of the division.
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

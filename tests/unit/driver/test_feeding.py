import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t

from tensorflowonspark.driver.feed.contents import contents_of
from tensorflowonspark.driver.feed.job import check_frame
from tensorflowonspark.driver.sharing.manifest import build_manifests, plan_moves
from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import Layout, Move, PartId, PartitionSlice, PartSummary, Split
from tensorflowonspark.messages import ColumnSummary, NodeEndpoint, NodeReady


class Frame:
    """A DataFrame's schema, which is all that is looked at."""

    mapInArrow = None  # noqa: N815 - by which a DataFrame is known

    def __init__(self, **columns):
        self.schema = t.StructType([t.StructField(name, kind) for name, kind in columns.items()])
        self.columns = list(columns)


@pytest.mark.parametrize(
    ("validation", "words"),
    [
        ("flga", "no such column; the DataFrame has"),
        ("x", "the column has type bigint, and must be boolean"),
        (Frame(x=t.LongType()), r"has the columns \['x'\], and the training data \['x', 'flag'\]"),
    ],
)
def test_what_can_not_be_validated_on(validation, words):
    with pytest.raises(FeedError, match=words):
        check_frame(Frame(x=t.LongType(), flag=t.BooleanType()), validation)


@given(st.dictionaries(st.integers(0, 9), st.integers(0, 1000), min_size=1, max_size=6))
def test_moves_make_skewed_nodes_even(rows):
    after = dict(rows)
    moves = plan_moves(rows)
    for giver, taker, count in moves:
        assert 0 < count <= rows[giver]
        after[giver] -= count
        after[taker] += count
    assert sum(after.values()) == sum(rows.values())
    if moves:
        assert max(after.values()) - min(after.values()) <= 1
        assert not {giver for giver, _, _ in moves} & {taker for _, taker, _ in moves}
    else:  # nearly even, or as even as whole rows can be
        even = max(rows.values()) - min(rows.values()) <= 1
        assert even or max(rows.values()) <= 1.05 * sum(rows.values()) / len(rows)


def test_parts_of_one_partition_are_one_slice_of_it_wherever_they_are_divided():
    target = NodeEndpoint(0, "worker:0", "here", NodeReady("socket", 1))

    def described(*first_rows):
        ends = [*first_rows[1:], 9]
        parts = [
            PartSummary(Split.TRAIN, PartId(0, first), 0, 0, end - first, schema=b"schema", checksum=end - first)
            for first, end in zip(first_rows, ends, strict=True)
        ]
        return build_manifests(parts[::-1], [target])[0], contents_of(parts)

    divided, contents = described(0, 2, 5)
    assert divided.parts == ((PartId(0, 0), 0), (PartId(0, 2), 0), (PartId(0, 5), 0))
    assert divided.layout == described(0)[0].layout == Layout(((PartitionSlice(0, 0, 9),),))
    assert contents == described(0)[1] == {0: (9, 9)}


def test_a_feed_is_described_to_each_node():
    parts = [
        PartSummary(Split.TRAIN, PartId(1), 11, 0, 9, {"x": ColumnSummary(1, "here")}, b"schema"),
        PartSummary(Split.TRAIN, PartId(0), 10, 1, 1, {"x": ColumnSummary(2, "there")}, b"schema"),
    ]
    targets = [
        NodeEndpoint(number, f"worker:{number}", "here", NodeReady(f"socket-{number}", number)) for number in (0, 1)
    ]
    found = build_manifests(parts, targets, readers=[7])
    assert found[0].parts == ((PartId(1), 11),)
    assert found[1].parts == ((PartId(0), 10),)
    assert found[7].parts == ()
    assert found[0].rows == found[7].rows == {0: 5, 1: 5}
    assert found[0].columns == {"x": ColumnSummary(3, "there")}
    assert found[0].moves == found[1].moves == (Move(0, 1, 4, "here", NodeReady("socket-1", 1)),)
    assert found[7].moves == ()

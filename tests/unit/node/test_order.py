"""The order of many rows, which is computed and not listed."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorflowonspark.columns import Kind
from tensorflowonspark.node.feed import order
from tensorflowonspark.node.feed.order import row_order
from tensorflowonspark.node.feed.rows import RowQueue
from tensorflowonspark.node.feed.shard import Shard
from tensorflowonspark.node.feed.taken import epoch_order

_SEEDS = st.one_of(st.none(), st.lists(st.integers(0, 2**63), min_size=1, max_size=3))


@pytest.fixture(autouse=True, scope="module")
def computed():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "_LISTED_ROWS", 0)
        yield


@given(rows=st.integers(1, 5000), seed=_SEEDS, ends=st.lists(st.integers(0, 5000), max_size=4))
def test_each_row_comes_once_in_whatever_parts_they_are_looked_at(rows, seed, ends):
    numbers = row_order(rows, seed)
    ends = [0, *sorted(min(end, rows) for end in ends), rows]
    found = np.concatenate([numbers[start:stop] for start, stop in pairwise(ends)])
    assert len(numbers) == rows
    assert sorted(found.tolist()) == list(range(rows))
    assert seed is not None or found.tolist() == list(range(rows))
    assert found.tolist() == epoch_order([rows], seed, 0).tolist()


def test_no_row_is_expected_at_any_place():
    rows, trials, parts = 4096, 400, 16
    counts = np.zeros((parts, parts))
    following = 0
    for seed in range(trials):
        found = row_order(rows, [seed])[:]
        following += np.count_nonzero(np.diff(found) == 1)
        np.add.at(counts, (np.arange(rows) * parts // rows, found * parts // rows), 1)
    expected = trials * rows / parts**2
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < (parts - 1) ** 2 + 5 * np.sqrt(2) * (parts - 1)
    assert 0.8 * trials < following < 1.2 * trials  # one in a random order, on the average


@pytest.mark.parametrize("rows", [100_000_000, 5_000_000_000])
def test_orders_of_more_rows_than_a_list_would_hold_cost_nothing(rows):
    numbers = row_order(rows, [1, 2])
    found = np.concatenate([numbers[:1000], numbers[rows // 2 : rows // 2 + 1000], numbers[rows - 1000 :]])
    assert found.min() >= 0
    assert found.max() < rows
    assert len(set(found.tolist())) == len(found)
    assert abs(found.mean() / rows - 0.5) < 0.05


def test_a_queue_hands_out_the_rows_of_several_orders():
    shards = [
        Shard([[pa.record_batch({"x": list(range(start, start + rows))})]]) for start, rows in [(0, 70), (70, 30)]
    ]
    kinds = {"x": Kind(np.dtype("int64"))}
    queue = RowQueue(kinds, 8)
    for number, shard in enumerate(shards):
        queue.add(shard.reader(kinds), row_order(shard.rows, [number]), skip=5)
    found = [queue.take(min(8, queue.count), 8)["x"] for _ in range(12)]
    expected = [row_order(70, [0])[5:], 70 + row_order(30, [1])[5:]]
    assert np.concatenate(found)[:90].tolist() == np.concatenate(expected).tolist()
    assert set(found[-1][2:]) <= set(expected[1].tolist()) | {70 + each for each in row_order(30, [1])[:5]}

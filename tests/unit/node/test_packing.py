"""Packed rows: each value once, in bins that are not too long, with as many steps on all workers."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorflowonspark as tfos
from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.node.feed.bins import pack
from tensorflowonspark.node.feed.taken import TakenRows
from tests.support.workers_in_threads import feeds_of, on_all

PLACES = 1000  # a value is its row's number times this, and its place


def batch_of(lengths, first=0):
    """Return rows in which each value names its row and its place."""
    rows = list(range(first, first + len(lengths)))
    tokens = [[PLACES * row + place for place in range(length)] for row, length in zip(rows, lengths, strict=True)]
    return pa.record_batch(
        {
            "tokens": pa.array(tokens, pa.list_(pa.int32())),
            "targets": pa.array([[-each for each in row] for row in tokens], pa.list_(pa.int64())),
            "id": pa.array(rows, pa.int64()),
            "w": pa.array([row + 1.0 for row in rows], pa.float32()),
        }
    )


OPTIONS = {"features": "tokens", "label": ["targets", "id"], "sample_weight": "w"}


def check_batch(features, labels, weights, length):
    """Check the columns of packed rows against each other; return the rows and places of the values."""
    tokens, segments, positions = (features[name] for name in ("tokens", "segment_ids", "positions"))
    real = weights > 0
    assert {each.shape for each in (tokens, segments, positions, weights, *labels.values())} == {(len(tokens), length)}
    rows, places = np.divmod(tokens, PLACES)
    counted = ~np.signbit(weights)  # in rows that do not fill up
    assert ((segments > 0) == real)[counted].all()
    assert (labels["targets"] == -tokens).all()
    assert (labels["id"] == rows)[real].all()
    assert (weights == rows + 1)[real].all()
    assert not tokens[~real & counted].any()
    for row in range(len(tokens)):
        if not counted[row].any():
            continue
        own = segments[row][segments[row] > 0]
        assert (segments[row][: len(own)] == own).all()  # padding comes last
        assert own[0] == 1
        assert np.isin(np.diff(own), [0, 1]).all()
        for segment in range(1, own[-1] + 1):
            at = np.flatnonzero(segments[row] == segment)
            assert len(set(rows[row, at])) == 1
            assert positions[row, at].tolist() == list(range(len(at)))
            assert (np.diff(places[row, at]) == 1).all()
    return list(zip(rows[real].tolist(), places[real].tolist(), strict=True))


@pytest.mark.deep
@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.lists(st.integers(0, 25), max_size=30), min_size=1, max_size=3).filter(
        lambda shares: any(map(any, shares))
    ),
    batch=st.integers(3, 7),
    long=st.sampled_from(["cut", "split"]),
    seed=st.integers(0, 3),
    shuffle=st.booleans(),
)
def test_each_value_is_taken_once_in_as_many_steps_on_all_workers(
    tmp_path_factory, lengths, batch, long, seed, shuffle
):
    length, firsts = 10, np.cumsum([0, *map(len, lengths)])
    batches = [batch_of(own, int(first)) for own, first in zip(lengths, firsts, strict=False)]
    feeds = feeds_of(tmp_path_factory.mktemp("rows"), *batches)
    options = {**OPTIONS, "pack": {"tokens": length, "targets": length}, "too_long": long, "seed": seed}

    def passes(feed, **more):
        found = feed.batches(batch, **options, shuffle=shuffle, **more)
        return [list(found) for _ in range(2)]

    expected = sorted(
        (row, place)
        for row, each in enumerate(length for own in lengths for length in own)
        for place in range(min(each, length) if long == "cut" else each)
    )
    epochs = on_all(feeds, passes)
    steps = len(epochs[0][0])
    for epoch in range(2):
        assert {len(own[epoch]) for own in epochs} == {steps}
        values = [value for own in epochs for element in own[epoch] for value in check_batch(*element, length)]
        assert sorted(values) == expected
    # A program that resumes has the same bins.
    for own, rest in zip(epochs, on_all(feeds, lambda feed: passes(feed, first_step=steps + steps // 2)), strict=True):
        for one, other in zip(own[1][steps // 2 :], rest[0], strict=True):
            counted = ~np.signbit(one[2])
            assert (counted == ~np.signbit(other[2])).all()
            assert (one[0]["tokens"] == other[0]["tokens"])[counted].all()


@pytest.mark.parametrize(
    "wanted",
    [
        {"features": "tokens", "pack": {"tokens": 10}},
        {"features": "tokens", "bucket": {"tokens": [4, 10]}},
        {"features": "w", "window": tfos.Window("id", "w", length=1, horizon=0)},
    ],
    ids=lambda wanted: list(wanted)[-1],
)
def test_a_checkpoint_within_an_epoch_is_of_rows_that_are_on_the_same_workers(tmp_path, wanted):
    """On others they would make other rows: nobody knows which of these were taken."""
    parts = {number: batch_of([3, 5, 2, 4, 1, 6], 6 * number) for number in range(4)}
    options = {"seed": 1, **wanted}

    def passes(name, batch, *owned, **more):
        (tmp_path / name).mkdir()
        feeds = feeds_of(tmp_path / name, *({number: parts[number] for number in own} for own in owned))
        return feeds, on_all(feeds, lambda feed: feed.batches(batch, **{**options, **more}))

    feeds, found = passes("before", 4, (0, 1), (2, 3))
    on_all(found, lambda batches: next(iter(batches)))
    taken = TakenRows.parse(feeds[0]._share.latest.taken(0, 1).text)

    def resumed(name, batch, *owned, **more):
        feeds, found = passes(name, batch, *owned, **more)  # a share holds its passes weakly
        return {feed._share.resume_from(taken) for feed in feeds} if found else None

    assert resumed("same", 4, (0, 1), (2, 3)) == {(0, 1)}
    assert resumed("moved", 4, (0, 2), (1, 3)) == {None}
    assert resumed("more", 4, (0, 1), (2,), (3,)) == {None}
    assert resumed("batch", 6, (0, 1), (2, 3)) == {None}
    assert resumed("seed", 4, (0, 1), (2, 3), seed=2) == {None}


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 40), max_size=60), st.integers(1, 50), st.booleans(), st.randoms())
def test_bins_hold_each_piece_once(lengths, capacity, splits, random):
    order = list(range(len(lengths)))
    random.shuffle(order)
    bins = pack(np.array(lengths, np.int64), capacity, np.array(order, np.int64), splits=splits)
    values = []
    for first, last in zip(bins.starts, bins.starts[1:], strict=False):
        assert first < last
        assert bins.size[first:last].sum() <= capacity
        assert bins.place[first:last].tolist() == [0, *np.cumsum(bins.size[first:last])[:-1].tolist()]
        for piece in range(first, last):
            begin = int(bins.begin[piece])
            values += [(int(bins.sequence[piece]), begin + place) for place in range(bins.size[piece])]
    wanted = [length if splits else min(length, capacity) for length in lengths]
    assert sorted(values) == [(row, place) for row, length in enumerate(wanted) for place in range(length)]


def test_little_is_padded():
    """Of lengths like those of documents (log-normal, from 1 to 2048): 1 % at most, where the longest pads 70 %."""
    lengths = np.minimum(2048, 1 + np.random.default_rng(1).lognormal(6.0, 1.0, 50_000).astype(np.int64))
    bins = pack(lengths, 2048, np.random.default_rng(2).permutation(len(lengths)))
    assert lengths.sum() / (2048 * len(bins)) > 0.99
    assert lengths.mean() / 2048 < 0.31


def test_a_dataset_has_the_same_batches(tmp_path):
    (feed,) = feeds_of(tmp_path, batch_of([3, 9, 4, 1, 0, 6]))
    options = {**OPTIONS, "pack": {"tokens": 10, "targets": 10}}
    dataset = feed.dataset(2, **options)
    assert dataset.cardinality() == 2
    for (x, y, weights), (own_x, own_y, own_weights) in zip(dataset, feed.batches(2, **options), strict=True):
        assert {name: each.numpy().tolist() for name, each in x.items()} == {k: v.tolist() for k, v in own_x.items()}
        assert {name: each.numpy().tolist() for name, each in y.items()} == {k: v.tolist() for k, v in own_y.items()}
        assert weights.numpy().tolist() == own_weights.tolist()


def test_weights_are_those_of_values_by_default_or_a_column_of_them(tmp_path):
    rows = batch_of([3, 4]).append_column("each", pa.array([[0.5, 1, 2], [1, 1, 0, 3]], pa.list_(pa.float32())))
    (feed,) = feeds_of(tmp_path, rows)
    (plain,) = feed.batches(1, features=["tokens", "id"], pack={"tokens": 8}, shuffle=False)
    assert sorted(plain) == ["id", "positions", "sample_weight", "segment_ids", "tokens"]
    assert plain["sample_weight"].tolist() == [[1, 1, 1, 1, 1, 1, 1, 0]]
    options = {"features": "tokens", "label": "targets", "sample_weight": "each"}
    ((x, _, weights),) = feed.batches(1, **options, pack=dict.fromkeys(("tokens", "targets", "each"), 8), shuffle=False)
    assert weights.tolist() == [[0.5, 1, 2, 1, 1, 0, 3, 0]]
    assert x["tokens"].tolist() == [[0, 1, 2, 1000, 1001, 1002, 1003, 0]]
    assert not np.signbit(weights).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pack": {"tokens": 5}}, r"holds an array of 6 values in row 1 of partition 0.*too_long='split'"),
        ({"pack": {"tokens": 0}}, "expected a dict of columns with one length above 0"),
        ({"pack": {"tokens": 8, "targets": 9}}, "expected a dict of columns with one length above 0"),
        ({"pack": {"tokens": [8]}}, "expected a dict of columns with one length above 0"),
        ({"pack": {"tokens": True}}, "expected a dict of columns with one length above 0"),
        ({"pack": "tokens"}, "expected a dict of columns"),
        ({"pack": {}}, "expected a dict of columns"),
        ({"pack": {"token": 8}}, r"pack names column 'token', but the program takes \['tokens'\]"),
        ({"pack": {"tokens": 8}, "too_long": "crop"}, "too_long='crop': expected one of 'error', 'cut', 'split'"),
        ({"pack": {"tokens": 8}, "features": ["tokens", "targets"]}, "column 'targets' holds arrays of different le"),
        ({"pack": {"tokens": 8}, "features": ["tokens", "text"]}, "column 'text' holds strings"),
        ({"pack": {"id": 8}, "features": ["id"]}, "column 'id' holds single values"),
        ({"pack": {"tokens": 8, "odd": 8}, "features": ["tokens", "odd"]}, "row 0 of this worker has 3 .* and 1 in 'o"),
        ({"pack": {"tokens": 8}, "features": ["tokens", "segment_ids"]}, "'segment_ids' would take the place"),
        ({"pack": {"tokens": 8}, "sample_weight": "pair"}, "packed rows have one weight for each row"),
    ],
)
def test_what_can_not_be_packed_is_named(tmp_path, options, message):
    rows = batch_of([3, 6])
    more = {"text": ["a", "b"], "odd": [[1], [2]], "segment_ids": [1, 2], "pair": [[1.0, 2.0]] * 2}
    for name, values in more.items():
        rows = rows.append_column(name, pa.array(values))
    (feed,) = feeds_of(tmp_path, rows)
    with pytest.raises((FeedError, SpecError), match=message):
        feed.batches(2, **{"features": "tokens", **options})


class ReadAnew:
    """Rows that are not kept."""

    rows = 2


def test_rows_that_are_not_kept_are_refused(tmp_path):
    (feed,) = feeds_of(tmp_path, batch_of([3, 6]))
    feed._share.rows = ReadAnew()
    with pytest.raises(FeedError, match=r"pack={'tokens': 8} needs all rows before the first step: keep them"):
        feed.batches(2, features="tokens", pack={"tokens": 8})


def test_empty_arrays_and_a_global_order_are_named(tmp_path):
    (empty,) = feeds_of(tmp_path, batch_of([0, 0]))
    with pytest.raises(FeedError, match="all arrays are empty"):
        empty.batches(2, features="tokens", pack={"tokens": 8})
    (tmp_path / "other").mkdir()
    (ordered,) = feeds_of(tmp_path / "other", batch_of([1, 2]), is_global=True)
    with pytest.raises(FeedError, match="order='global' divides the rows that are fed among the steps"):
        ordered.batches(2, features="tokens", pack={"tokens": 8})

"""Mixtures: stated shares of each source, each shuffled and repeated by itself, the same on any number of workers."""

import os
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorflowonspark.errors import FeedError
from tensorflowonspark.mixture import Mixture, split_by_shares
from tensorflowonspark.node.feed.mixture_order import mixture_order
from tensorflowonspark.node.feed.taken import TakenRows
from tests.support.workers_in_threads import feeds_of, on_all

SHARES = st.lists(st.floats(0.01, 1), min_size=1, max_size=4).map(lambda found: [each / sum(found) for each in found])


@given(st.integers(1, 10**7), SHARES)
def test_each_source_has_its_share_but_for_one_row(rows, shares):
    counts = split_by_shares(rows, shares)
    assert sum(counts) == rows
    assert all(abs(count - rows * share) < 1 for count, share in zip(counts, shares, strict=True))


@settings(deadline=None)
@given(
    sources=st.lists(st.tuples(st.integers(1, 50), st.integers(1, 60)), min_size=1, max_size=3),
    seed=st.one_of(st.none(), st.integers(0, 3)),
)
def test_a_source_has_all_its_rows_before_it_repeats_one(sources, seed):
    sizes, counts = zip(*sources, strict=True)
    epochs = [mixture_order(sizes, counts, seed, epoch) for epoch in range(4)]
    for source, (size, count) in enumerate(sources):
        start = sum(sizes[:source])
        own = [each[(each >= start) & (each < start + size)] - start for each in epochs]
        assert {len(each) for each in own} == {count}
        drawn = np.concatenate(own)
        if seed is None:
            assert drawn.tolist() == [number % size for number in range(4 * count)]
        # Within an epoch rows of a source keep the order in which they are drawn, so that passes can be seen.
        whole = len(drawn) - len(drawn) % size
        assert (np.sort(drawn[:whole].reshape(-1, size)) == np.arange(size)).all()


def test_each_source_is_spread_over_the_whole_epoch_and_shuffled_anew():
    first, second = (mixture_order([5000, 300], [700, 300], 7, epoch) for epoch in range(2))
    for start in range(0, 1000, 100):
        assert abs(np.count_nonzero(first[start : start + 100] >= 5000) - 30) <= 1
    assert not np.array_equal(first[first >= 5000], second[second >= 5000])
    assert np.array_equal(first, mixture_order([5000, 300], [700, 300], 7, 0))
    assert not np.array_equal(first, mixture_order([5000, 300], [700, 300], 8, 0))


def batch_of(ids, sources):
    x = pa.array([[each] for each in ids], pa.list_(pa.int64()))
    columns = {"id": pa.array(ids, pa.int64()), "x": x, "from": pa.array(sources, pa.int32())}
    return pa.record_batch(columns)


PARTITIONS = 5


def mixed_feeds(directory, sources, owners, mixture):
    """Return the feeds of workers, of which each partition has one: the last one is empty, each row's id its place."""
    directory.mkdir(exist_ok=True)
    ids, own = np.arange(len(sources)), [{} for _ in range(max(owners) + 1)]
    for partition, owner in enumerate(owners):
        rows = ids[(ids * (PARTITIONS - 1)) // len(ids) == partition]
        own[owner][partition] = batch_of(rows, [sources[row] for row in rows])
    return feeds_of(directory, *own, mixture=mixture, is_global=True)


def steps_of(feeds, batch, epochs, resumed=None, stop=None, **options):
    """Return the rows of each step of some epochs, sorted, and what the last step had taken."""

    def passes(feed):
        found = feed.batches(batch, source="number", **options)
        share = feed._share
        if resumed is not None:
            assert share.resume_from(TakenRows.parse(resumed.text)) is not None
        taken = []
        for _ in range(epochs):
            for number, element in enumerate(found):
                real = ~np.signbit(element["sample_weight"])
                taken.append(list(zip(element["id"][real].tolist(), element["number"][real].tolist(), strict=True)))
                if stop is not None and len(taken) == stop:
                    return taken, share.latest.taken(0, number + 1)
        return taken, None

    found = on_all(feeds, passes)
    steps = [sorted(sum(own, [])) for own in zip(*(taken for taken, _ in found), strict=True)]
    return steps, found[0][1]


OWNERS = st.lists(st.integers(0, 2), min_size=PARTITIONS, max_size=PARTITIONS)  # the worker of each partition
ONE, TWO, THREE = [0] * PARTITIONS, [0, 1, 1, 0, 1], [0, 1, 2, 0, 1]


@pytest.mark.deep
@settings(max_examples=int(os.environ.get("TFOS_TEST_DRAWS", "30")), deadline=None)
@given(
    sources=st.lists(st.integers(0, 2), min_size=12, max_size=60).filter(lambda found: len(set(found)) == 3),
    owners=OWNERS,
    others=OWNERS,
    rows=st.integers(20, 100),
    stop=st.integers(1, 12),
    seed=st.integers(0, 3),
    shuffle=st.booleans(),
)
def test_any_workers_take_the_same_rows_in_each_step_and_go_on_at_any(
    tmp_path_factory, sources, owners, others, rows, stop, seed, shuffle
):
    mixture, options = Mixture("from", ("a", "b", "c"), (0.5, 0.3, 0.2), rows), {"seed": seed, "shuffle": shuffle}

    def feeds(owners):
        return mixed_feeds(tmp_path_factory.mktemp("rows"), sources, owners, mixture)

    expected, _ = steps_of(feeds(ONE), 7, 2, **options)
    assert len(expected) == 2 * -(-rows // 7)
    assert all(sources[row] == number for step in expected for row, number in step)
    counts = Counter(number for step in expected for _, number in step)
    assert [counts[number] for number in range(3)] == [2 * count for count in mixture.counts(0)]
    found, _ = steps_of(feeds(owners), 7, 2, **options)
    assert found == expected
    stop = min(stop, len(expected))
    before, taken = steps_of(feeds(owners), 7, 2, stop=stop, **options)
    after, _ = steps_of(feeds(others), 7, 2, resumed=taken, **options)
    left = expected[stop:]
    assert before + after[: len(left)] == expected


def test_a_resume_with_another_batch_size_draws_the_same_rows(tmp_path):
    mixture, sources = Mixture("from", ("a", "b"), (0.75, 0.25), 40), [0] * 9 + [1] * 30
    whole, _ = steps_of(mixed_feeds(tmp_path / "a", sources, ONE, mixture), 4, 1)
    before, taken = steps_of(mixed_feeds(tmp_path / "b", sources, TWO, mixture), 4, 1, stop=3)
    after, _ = steps_of(mixed_feeds(tmp_path / "c", sources, THREE, mixture), 7, 1, resumed=taken)
    assert sorted(sum(before + after, [])) == sorted(sum(whole, []))
    assert [len(each) for each in after] == [7, 7, 7, 7]


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.7, 0.3)])
def test_other_shares_do_not_go_on_within_an_epoch(tmp_path, shares):
    sources = [0] * 9 + [1] * 30
    mixtures = [Mixture("from", ("a", "b"), each, 40) for each in ((0.5, 0.5), shares)]
    _, taken = steps_of(mixed_feeds(tmp_path / "a", sources, ONE, mixtures[0]), 4, 1, stop=3)
    (feed,) = mixed_feeds(tmp_path / "b", sources, ONE, mixtures[1])
    feed.batches(4)
    place = feed._share.resume_from(taken)
    assert place == ((0, 3) if shares == (0.5, 0.5) else None)


def test_what_a_program_sees_of_a_mixture(tmp_path):
    (feed,) = mixed_feeds(tmp_path, [0, 0, 1, 1], ONE, Mixture("from", ("a", "b"), (0.5, 0.5), 8))
    assert (feed.columns, feed.total_rows, feed.steps(4)) == (["id", "x"], 4, 2)
    batch = next(iter(feed.batches(4, features=["id"])))
    assert list(batch) == ["id", "sample_weight"]
    batch = next(iter(feed.batches(4, features="id", source="number")))
    assert batch["number"].dtype == np.int32
    with pytest.raises(FeedError, match="source='id': another feature"):
        feed.batches(4, source="id")
    with pytest.raises(FeedError, match="no column 'from'"):
        feed.batches(4, features="from")
    with pytest.raises(FeedError, match="bucket.*a mixture draws the rows"):
        feed.batches(4, features="x", label="id", bucket={"x": [3]})


def packed_feeds(directory, rows, owners, mixture):
    """Return feeds of rows, each a number of values and a source; a value is its row's number."""
    own = [{} for _ in range(max(owners) + 1)]
    for partition, owner in enumerate(owners):
        numbers = range(partition, len(rows), len(owners))
        x = pa.array([[number] * rows[number][0] for number in numbers], pa.list_(pa.int64()))
        source = pa.array([rows[number][1] for number in numbers], pa.int32())
        own[owner][partition] = pa.record_batch({"x": x, "from": source})
    return feeds_of(directory, *own, mixture=mixture, is_global=True)


@pytest.mark.deep
@settings(max_examples=int(os.environ.get("TFOS_TEST_DRAWS", "20")), deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 1)), min_size=5, max_size=60).filter(
        lambda found: len({source for _, source in found}) > 1
    ),
    owners=st.lists(st.integers(0, 2), min_size=5, max_size=5),
    epoch_rows=st.integers(10, 30),
    stop=st.integers(1, 5),
    shuffle=st.booleans(),
)
def test_packed_rows_have_one_source_each_and_are_mixed(tmp_path_factory, rows, owners, epoch_rows, stop, shuffle):
    mixture = Mixture("from", ("a", "b"), (0.6, 0.4), epoch_rows)
    options = {"features": ["x"], "pack": {"x": 10}, "source": "number", "shuffle": shuffle}

    def passes(owners, taken=None, stop=None):
        def taken_of(feed):
            found = feed.batches(4, **options)
            if taken is not None:
                assert feed._share.resume_from(TakenRows.parse(taken.text)) is not None
            steps = []
            for _ in range(1 if stop or taken else 3):
                for number, element in enumerate(found):
                    parts = [element[name] for name in ("x", "segment_ids", "number", "sample_weight")]
                    real = ~np.signbit(parts[-1]).any(axis=1)
                    bins = [[each[row][parts[1][row] > 0] for each in parts] for row in np.flatnonzero(real)]
                    steps.append([(tuple(x.tolist()), *set(source.tolist())) for x, _, source, _ in bins])
                    if number + 1 == stop:
                        return steps, feed._share.latest.taken(0, number + 1)
            return steps, None

        feeds = packed_feeds(tmp_path_factory.mktemp("rows"), rows, owners, mixture)
        found = on_all(feeds, taken_of)
        return [sorted(sum(own, [])) for own in zip(*(steps for steps, _ in found), strict=True)], found[0][1]

    whole, _ = passes(owners)
    steps = -(-epoch_rows // 4)
    assert len(whole) == 3 * steps
    drawn = [Counter(sum(whole[epoch * steps : (epoch + 1) * steps], [])) for epoch in range(3)]
    for source, count in enumerate(mixture.counts(0)):
        of_source = [Counter({key: value for key, value in each.items() if key[1] == source}) for each in drawn]
        assert [each.total() for each in of_source] == [count] * 3
        times = sum(of_source, Counter())
        assert max(times.values()) - min(times.values()) <= 1  # each comes before any comes again
        if max(times.values()) > 1:
            values = Counter(value for bin_, _ in times for value in bin_)
            assert values == {number: length for number, (length, own) in enumerate(rows) if own == source}
    stop = min(stop, steps)
    before, taken = passes(owners, stop=stop)
    assert before == whole[:stop]
    if stop < steps:
        assert passes(owners, taken)[0] == whole[stop:steps]


def test_packed_rows_of_a_mixture_need_their_number(tmp_path):
    (feed,) = mixed_feeds(tmp_path, [0, 0, 1, 1], ONE, Mixture("from", ("a", "b"), (0.5, 0.5)))
    with pytest.raises(FeedError, match="pack.*as many packed rows as epoch_rows says"):
        feed.batches(4, features="x", pack={"x": 3})


def test_the_rows_of_one_source_alone(tmp_path):
    sources = [int(number % 7 == 3) for number in range(40)]
    feeds = mixed_feeds(tmp_path, sources, THREE, Mixture("from", ("a", "b"), (0.5, 0.5), 20))

    def epochs(feed):
        found = feed.batches(4, features=["id"], only="b")
        return [[batch["id"][~np.signbit(batch["sample_weight"])].tolist() for batch in found] for _ in range(2)]

    for own in zip(*on_all(feeds, epochs), strict=True):
        assert len({len(each) for each in own}) == 1
        assert sorted(sum(sum(own, []), [])) == [3, 10, 17, 24, 31, 38]
    with pytest.raises(FeedError, match=r"only='c': there is no such source.*\['a', 'b'\]"):
        feeds[0].batches(4, only="c")
    with pytest.raises(FeedError, match="pack.*only=... takes rows as they are"):
        feeds[0].batches(4, features="x", label="id", pack={"x": 3}, only="b")


def test_a_checkpoint_within_an_epoch_of_one_source_is_of_rows_that_are_on_the_same_workers(tmp_path):
    def passes(name, owners):
        feeds = mixed_feeds(tmp_path / name, [0, 1] * 20, owners, Mixture("from", ("a", "b"), (0.5, 0.5), 20))
        return feeds, on_all(feeds, lambda feed: feed.batches(4, features=["id"], only="b"))

    feeds, found = passes("before", THREE)
    on_all(found, lambda batches: next(iter(batches)))
    taken = TakenRows.parse(feeds[0]._share.latest.taken(0, 1).text)
    for name, owners, place in (("same", THREE, (0, 1)), ("moved", [2, 1, 0, 0, 1], None), ("fewer", TWO, None)):
        feeds, found = passes(name, owners)
        assert {feed._share.resume_from(taken) for feed in feeds} == {place}, name


def test_a_source_without_rows_is_named(tmp_path):
    (feed,) = mixed_feeds(tmp_path, [0, 0], ONE, Mixture("from", ("a", "b"), (0.5, 0.5)))
    with pytest.raises(FeedError, match="source 'b' of the mixture has no rows"):
        feed.batches(2)
    (feed,) = mixed_feeds(tmp_path / "few", [0, 1], ONE, Mixture("from", ("a", "b"), (0.9, 0.1)))
    with pytest.raises(FeedError, match="'b' of the mixture has no row in an epoch of 2"):
        feed.batches(2)


def test_other_rows_have_no_source(tmp_path):
    (feed,) = feeds_of(tmp_path, batch_of([1, 2], [0, 1]))
    for option in ({"source": "number"}, {"only": "a"}):
        with pytest.raises(FeedError, match="the rows are not those of a mixture"):
            feed.batches(2, **option)

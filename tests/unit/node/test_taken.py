"""Epochs that clusters of any sizes take one after another: each row once, whichever way they are fed."""

import logging
import os
from dataclasses import replace
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorflowonspark.columns import mixed_order, places_of, summarize
from tensorflowonspark.driver.sharing.manifest import build_manifests
from tensorflowonspark.feed_messages import (
    CacheConfig,
    Layout,
    PartId,
    PartitionShare,
    PartitionSlice,
    PartSummary,
    Split,
    SplitManifest,
)
from tensorflowonspark.messages import NodeEndpoint
from tensorflowonspark.node.feed.files import FileReader
from tensorflowonspark.node.feed.selection import FeatureOptions, Selection
from tensorflowonspark.node.feed.shard import Shard
from tensorflowonspark.node.feed.share import Share
from tensorflowonspark.node.feed.taken import StepSpan, TakenRows, epoch_order, find_left

pytestmark = pytest.mark.usefixtures("quiet")
_DRAWS = int(os.environ.get("TFOS_TEST_RESUMES", "40"))


@pytest.fixture(scope="module")
def quiet():
    """Have no warnings of uneven rows, which hypothesis would show of each example."""
    logger = logging.getLogger(Share.__module__)
    logger.disabled = True
    yield
    logger.disabled = False


def batch_of(ids):
    return pa.record_batch({"id": pa.array(ids, pa.int64())})


EXAMPLE = batch_of([1])
SCHEMA = EXAMPLE.schema.serialize().to_pybytes()


class Sizes(NamedTuple):
    """The rows of each partition; a row's id is its place."""

    rows: tuple

    def ids(self, partition):
        return places_of(partition, np.arange(self.rows[partition]))

    @property
    def all_ids(self):
        return sorted(int(each) for partition in range(len(self.rows)) for each in self.ids(partition))


def summary(number, partition, rows, dealt=()):
    return PartSummary(Split.TRAIN, PartId(partition), 0, number, rows, summarize(EXAMPLE, 0, 0), SCHEMA, 0, dealt)


def shares_of_parts(parts, rebalance):
    """Return each worker's share of parts, which are lists of ids by worker, after all moves."""
    workers = len(parts)
    endpoints = [NodeEndpoint(number, "", "", None) for number in range(workers)]
    summaries = [each for number in range(workers) for each, _ in parts[number]]
    manifests = build_manifests(summaries, endpoints, CacheConfig() if rebalance else None)
    ids = [np.concatenate([np.arange(0), *(each for _, each in parts[number])]) for number in range(workers)]
    kept = [each[: manifests[number].rows[number]] for number, each in enumerate(ids)]
    sent = [len(each) for each in kept]
    for move in dict.fromkeys(move for number in range(workers) for move in manifests[number].moves):
        moved = ids[move.giver][sent[move.giver] :][: move.rows]
        sent[move.giver] += move.rows
        kept[move.taker] = np.concatenate([kept[move.taker], moved])
    shards = [Shard([[batch_of(each)]]) for each in kept]
    return [
        Share(manifests[number], shards[number], range(workers), number, lambda progress: None)
        for number in range(workers)
    ]


def from_jobs(sizes, workers, rebalance):
    parts = [[] for _ in range(workers)]
    for partition in range(len(sizes.rows)):
        number = partition % workers
        parts[number].append((summary(number, partition, sizes.rows[partition]), sizes.ids(partition)))
    return shares_of_parts(parts, rebalance)


def held(sizes, workers, rebalance):
    parts = []
    for number in range(workers):
        dealt, places = [], [np.arange(0)]
        for partition, rows in enumerate(sizes.rows):
            own = sizes.ids(partition)[(number - partition) % workers :: workers]
            places.append(own)
            dealt += [PartitionShare(partition, (number - partition) % workers, len(own), 0)] if rows else []
        ids = np.concatenate(places)
        parts.append([(summary(number, number, len(ids), tuple(dealt)), ids[mixed_order(ids)])])
    return shares_of_parts(parts, rebalance)


class Group(NamedTuple):
    """A split of files."""

    sizes: Sizes
    number: int

    @property
    def rows(self):
        return self.sizes.rows[self.number]

    size = rows

    @property
    def name(self):
        return f"split {self.number}"

    def batches(self):
        ids = self.sizes.ids(self.number)
        for start in range(0, len(ids), 7):
            yield batch_of(ids[start : start + 7])


def from_files(sizes, workers, rebalance):
    """Return shares of files without a cache, in windows of few rows or of many."""
    shares = []
    for number in range(workers):
        feeds = SimpleNamespace(numbers=range(workers), open_files=lambda *opened, measured: opened)
        reader = FileReader(SimpleNamespace(number=number), None, None, feeds)
        groups = [Group(sizes, each) for each in range(len(sizes.rows))]
        limit = CacheConfig.parse(None, 1000 if rebalance else 10_000)
        manifest, rows = reader._open("", groups, reader._divided(groups), limit)
        shares.append(Share(manifest, rows, range(workers), number, lambda progress: None))
    return shares


WAYS = {"job": from_jobs, "held": held, "files": from_files}
MANIFEST = SplitManifest({}, columns=summarize(EXAMPLE, 0, 0), schema=SCHEMA)
SELECTION = Selection(MANIFEST, FeatureOptions(features="id"))


class Cluster(NamedTuple):
    """How one cluster takes some steps of an epoch."""

    workers: int
    batch_size: int
    steps: int  # until it fails
    is_global: bool = False  # whether each step has the same rows on any number of workers


def passes_of(shares, batch_size, seed, is_global):
    for each in shares:
        each.manifest = replace(each.manifest, is_global=is_global)
    return [each.passes(SELECTION, batch_size, seed) for each in shares]


def play(way, sizes, clusters, seed, epoch, rebalance):
    """Have clusters take an epoch one after another; return the ids that each took, and the steps of each."""
    found, taken = [], None
    for number, (workers, batch_size, steps, is_global) in enumerate(clusters):
        shares = WAYS[way](sizes, workers, rebalance)
        passes = passes_of(shares, batch_size, seed, is_global)
        if taken is None:
            begin = {each.cursor.resume_at(epoch, 0) or (epoch, 0) for each in passes}
        else:
            begin = {each.resume_from(TakenRows.parse(taken.text)) for each in shares}
        ((at, first),) = begin
        total = passes[0].plan.steps
        if at > epoch:  # none is left
            assert (at, first) == (epoch + 1, 0)
            found.append([])
            continue
        stop = total if number == len(clusters) - 1 else min(total, first + steps)
        of_steps = [[] for _ in range(first, stop)]
        for each in passes:
            running = each()
            for number_of_step in range(stop - first):
                values, real = next(running)
                of_steps[number_of_step] += values["id"][real].tolist()
            if stop == total:
                assert next(running, None) is None
                assert each.cursor.next == (epoch + 1, 0) or not of_steps
        taken = passes[0].cursor.taken(0, stop) if stop else taken
        found.append(of_steps)
    return found


def clusters_of(is_global):
    cluster = st.builds(Cluster, st.integers(1, 4), st.integers(4, 30), st.integers(0, 12), is_global)
    return st.lists(cluster, min_size=2, max_size=4)


sizes_of = st.lists(st.integers(0, 40), min_size=1, max_size=9).filter(any).map(lambda rows: Sizes(tuple(rows)))
seeds = st.sampled_from([None, 0, 7])


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=_DRAWS, deadline=None)
@given(st.data(), sizes_of, seeds, st.integers(0, 2), st.booleans())
def test_each_row_once_with_any_numbers_of_workers(way, data, sizes, seed, epoch, rebalance):
    clusters = data.draw(clusters_of(st.just(False) if way == "files" else st.booleans()))
    found = play(way, sizes, clusters, seed, epoch, rebalance)
    assert sorted(each for span in found for step in span for each in step) == sizes.all_ids
    for span, cluster in zip(found, clusters, strict=True):
        assert all(len(step) <= cluster.batch_size for step in span)


@pytest.mark.deep
@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=_DRAWS, deadline=None)
@given(sizes_of, st.integers(1, 4), st.integers(4, 30), st.integers(1, 12), seeds, st.booleans())
def test_as_many_workers_go_on_with_the_steps_of_an_unbroken_epoch(
    way, sizes, workers, batch_size, steps, seed, rebalance
):
    once = Cluster(workers, batch_size, steps)
    (unbroken,) = play(way, sizes, [once], seed, 1, rebalance)
    broken = play(way, sizes, [once, once, once], seed, 1, rebalance)
    assert sum(broken, []) == unbroken


@pytest.mark.deep
@pytest.mark.parametrize("way", ["job", "held"])
@settings(max_examples=_DRAWS, deadline=None)
@given(st.data(), sizes_of, st.integers(4, 30), seeds, st.integers(0, 2))
def test_steps_of_a_global_order_have_the_same_rows_on_any_numbers_of_workers(
    way, data, sizes, batch_size, seed, epoch
):
    def clusters(number):
        return [Cluster(data.draw(st.integers(1, 4)), batch_size, data.draw(st.integers(0, 9)), True)] * number

    def steps(found):
        return [sorted(step) for span in found for step in span]

    (unbroken,) = steps_of = play("job", sizes, [Cluster(1, batch_size, 0, True)], seed, epoch, False)
    assert len(unbroken) == -(-sum(sizes.rows) // batch_size)
    for number in 1, 3:
        assert steps(play(way, sizes, clusters(number), seed, epoch, data.draw(st.booleans()))) == steps(steps_of)


@pytest.mark.parametrize(("way", "workers"), [(way, workers) for way in ("job", "held") for workers in (2, 3, 8)])
def test_in_a_global_order_workers_have_about_equally_many_rows_of_each_step(way, workers):
    shares = WAYS[way](Sizes((2500,) * 24), workers, True)
    counts = [[step.real for step in each.steps_ahead()] for each in passes_of(shares, 480, 7, True)]
    assert np.sum(counts, axis=0).tolist() == [480] * 125
    assert np.abs(np.array(counts) - 480 / workers).max() < 12  # of a shuffle of all rows it would be 30 and more


@pytest.mark.parametrize("way", WAYS)
def test_rows_that_are_dealt_evenly_take_little_more_than_the_steps_of_those_that_are_left(way):
    """Some workers find more left than others, as the workers before took their rows in orders of their own."""
    sizes = Sizes((120,) * 12)
    first, second, third = play(way, sizes, [Cluster(3, 24, 20), Cluster(2, 24, 20), Cluster(4, 24, 0)], 5, 0, True)
    assert len(first) == len(second) == 20
    assert len(third) == pytest.approx(1440 / 24 - 40, rel=0.5)


def test_the_dataset_to_train_on_says_which_step_comes_next():
    sizes = Sizes((120,) * 12)
    (first, *_) = from_jobs(sizes, 3, True)
    passes = first.passes(SELECTION, 24, 5)
    next(running := passes())
    taken = passes.cursor.taken(0, 20)
    running.close()
    (again, *_) = from_jobs(sizes, 2, True)
    trained, evaluated = again.passes(SELECTION, 24, 5), again.passes(SELECTION, 8, None)
    assert again.resume_from(taken) == trained.cursor.next < evaluated.cursor.next
    (changed, *_) = from_jobs(sizes, 2, True)
    one, other = changed.passes(SELECTION, 30, 5), changed.passes(SELECTION, 8, None)
    assert changed.resume_from(taken) is None  # which of them trains is not known
    assert one.cursor.next != other.cursor.next


def test_a_record_of_other_rows_is_refused():
    span = StepSpan(Layout(((PartitionSlice(0, 0, 3),), (PartitionSlice(1, 0, 2),))), (1, 1), 1, 2, None, 0)
    left = find_left(0, [span], Layout(((PartitionSlice(0, 0, 3), PartitionSlice(1, 0, 2)),)))
    assert [each.tolist() for each in left] == [[0, 1, 1, 0, 1]]
    for others in (
        ((PartitionSlice(0, 0, 3),),),  # a partition is missing
        ((PartitionSlice(0, 0, 3), PartitionSlice(1, 0, 3)),),  # another one is longer
        ((PartitionSlice(0, 0, 3), PartitionSlice(1, 1, 2)),),  # a row that is not there
        ((PartitionSlice(0, 0, 2), PartitionSlice(1, 0, 2), PartitionSlice(0, 1, 1)),),  # one that is there twice
    ):
        assert find_left(0, [span], Layout(others)) is None
    assert TakenRows.parse('{"epoch": 0, "legs": [], "fingerprint": 7}') is None  # of another version


def test_the_order_of_an_epoch_is_known_without_its_rows():
    assert sorted(epoch_order([5, 0, 9], [3, 1], 4).tolist()) == list(range(14))
    assert epoch_order([2, 3], None, 2).tolist() == list(range(5))


@pytest.mark.parametrize("way", WAYS)
def test_workers_have_orders_of_their_own(way):
    """With equal ones a step has the rows of equal places of all shares, whose labels are often alike."""
    sizes = Sizes((30, 30, 30, 30))
    orders = []
    for share in WAYS[way](sizes, 2, False):
        passes = share.passes(SELECTION, 8, 7)
        passes.cursor.resume_at(1, 0)
        orders.append(np.concatenate([values["id"][real] for values, real in passes()]))
    assert sorted(np.concatenate(orders).tolist()) == sizes.all_ids
    places = [np.argsort(np.argsort(each)) for each in orders]
    assert np.mean(places[0] == places[1]) < 0.2

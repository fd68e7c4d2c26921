"""The rows of an epoch that its steps have taken, from which any number of workers takes the others.

A checkpoint within an epoch records where the rows were, and how many each worker had taken of them
(`StepSpan`). The order in which a worker takes its rows follows from that, the seed and the epoch. So a program that
resumes knows each row that was taken, by its partition and its place there, and its workers take the others, wherever
these are now.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from tensorflowonspark.columns import mixed_order, places_of, split_places
from tensorflowonspark.feed_messages import Layout, PartitionSlice
from tensorflowonspark.node.feed.global_order import global_order
from tensorflowonspark.node.feed.order import Mask, Numbers, row_order
from tensorflowonspark.node.feed.windows import plan_turns, window_pieces


@dataclass(frozen=True)
class StepSpan:
    """Steps of an epoch that the same workers took, without those before."""

    layout: Layout  # where the rows were
    taken: tuple[int, ...]  # rows of each worker
    steps: int
    batch_size: int  # rows of a step, over all workers
    seed: int | None  # of the orders; None: the rows kept their own
    window_rows: int  # of a window of files that were read anew; 0: all rows of a worker were shuffled together
    is_global: bool = False  # the steps were those of `global_order`, and the layout has one worker with all rows
    mixture: tuple[int, ...] = ()  # or those of `mixture_order`, with so many rows of each source in an epoch
    made: str = ""  # how the rows, which `taken` counts, were made of those of the layout, if they were


@dataclass(frozen=True)
class TakenRows:
    """The rows that the steps of an epoch have taken, and the fingerprint of all (`SplitManifest`)."""

    epoch: int
    spans: tuple[StepSpan, ...]
    fingerprint: int = 0

    @property
    def text(self) -> str:
        """The same in JSON."""
        return json.dumps(self, default=vars)

    @classmethod
    def parse(cls, text: str) -> "TakenRows | None":
        """Return what a text says; None if another version has written it."""
        record = json.loads(text)
        if "spans" not in record:
            return None
        return cls(record["epoch"], tuple(map(_span, record["spans"])), record["fingerprint"])


@dataclass(frozen=True)
class EpochRest:
    """What is left of an epoch after some spans: its first step, the rows of each worker, and which of this one's."""

    epoch: int
    spans: tuple[StepSpan, ...] = ()
    first_step: int = 0
    rows: Sequence[int] | None = None  # None: all
    left: Mask | None = None
    taken: int = 0  # of a mixture, whose epoch may have a row twice: the rows before, in its order


def _span(record: dict[str, Any]) -> StepSpan:
    layout = record["layout"]
    slices = tuple(tuple(PartitionSlice(*each) for each in own) for own in layout["slices"])
    moves = tuple(tuple(move) for move in layout["moves"])
    mixture = tuple(record.get("mixture", ()))  # an older checkpoint has none
    found = {**record, "layout": Layout(slices, moves, layout["mixed"]), "taken": tuple(record["taken"])}
    return StepSpan(**{**found, "mixture": mixture})


def order_seed(seed: int | None, epoch: int, worker: int) -> list[int] | None:
    """Return the seed of the order of an epoch on one worker; None if the rows keep theirs.

    Two workers have different ones: with equal orders, a step would have the rows of equal places in all their shares,
    which are alike where a value depends on the row's number.
    """
    return None if seed is None else [seed, epoch, worker]


def epoch_order(rows: Sequence[int], seed: Sequence[int] | None, window_rows: int) -> Numbers:
    """Return the order in which an epoch has a worker's rows, by their numbers.

    `rows` are numbers of rows that follow each other; of files, those of each split.
    """
    if not window_rows:
        return row_order(sum(rows), seed)[:]
    windows = _windows(rows, seed, window_rows)
    return np.concatenate([np.arange(0), *windows])


def _windows(rows: Sequence[int], seed: Sequence[int] | None, window_rows: int) -> Iterator[Numbers]:
    starts = np.cumsum([0, *rows])
    for number, pieces in enumerate(window_pieces(plan_turns(len(rows), seed, window_rows), rows)):
        found = np.concatenate([starts[split] + np.arange(first, first + count) for split, first, count in pieces])
        yield found[row_order(len(found), seed, (number,))[:]]


def find_left(epoch: int, spans: Sequence[StepSpan], layout: Layout) -> list[Mask] | None:
    """Return which rows of each worker no span of an epoch has taken; None if the spans had other rows."""
    sizes = partition_sizes(layout)
    left = np.ones(sum(sizes.values()), np.bool_)
    for span in spans:
        rows = None if span.mixture or span.made else row_numbers(span.layout, sizes)
        if rows is None:
            return None
        for worker, (own, slices, taken) in enumerate(zip(rows, span.layout.slices, span.taken, strict=True)):
            together = [len(own)] if span.layout.moves else [each.rows for each in slices]
            if span.is_global:
                order = own[global_order(together, span.seed, epoch)]
            else:
                order = own[epoch_order(together, order_seed(span.seed, epoch, worker), span.window_rows)]
            left[order[left[order]][:taken]] = False
    now = row_numbers(layout, sizes)
    return None if now is None else [left[own] for own in now]


def partition_sizes(layout: Layout) -> dict[int, int]:
    """Return the number of rows of each partition."""
    sizes: Counter[int] = Counter()
    for each in chain.from_iterable(layout.slices):
        sizes[each.partition] += each.rows
    return dict(sorted(sizes.items()))


def row_numbers(layout: Layout, sizes: dict[int, int]) -> list[Numbers] | None:
    """Return the rows of each worker, numbered over all partitions; None if these have other sizes.

    A row that is missing, or on two workers, is the same: no number of such a layout says which row it is.
    """
    if partition_sizes(layout) != sizes:
        return None
    partitions, starts = np.array(list(sizes), np.int64), np.cumsum([0, *sizes.values()])
    numbers: list[Numbers] = []
    for slices in layout.slices:
        pieces = [places_of(each.partition, each.first + each.stride * np.arange(each.rows)) for each in slices]
        places = np.concatenate([np.arange(0), *pieces])
        if layout.mixed:
            places = places[mixed_order(places)]
        owners, own = split_places(places)
        numbers.append(starts[np.searchsorted(partitions, owners)] + own)
    counted = np.bincount(np.concatenate(numbers), minlength=int(starts[-1]))
    if len(counted) != starts[-1] or not (counted == 1).all():
        return None
    given: Counter[int] = Counter()
    for giver, _, rows in layout.moves:
        given[giver] += rows
    before, sent = list(numbers), {giver: len(numbers[giver]) - rows for giver, rows in given.items()}
    numbers = [own[: sent.get(worker, len(own))] for worker, own in enumerate(numbers)]
    for giver, taker, rows in layout.moves:
        start = sent[giver]
        sent[giver] = stop = start + rows
        numbers[taker] = np.concatenate([numbers[taker], before[giver][start:stop]])
    return numbers

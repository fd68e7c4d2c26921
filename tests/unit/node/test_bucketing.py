"""Rows in buckets: each once, padded to a length that all rows of its step fit into, which is that of all workers."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorflowonspark.errors import FeedError, SpecError
from tests.support.workers_in_threads import feeds_of, on_all

LENGTHS = [4, 8, 20]


def batch_of(lengths, first=0):
    """Return rows in which each value names its row; no value is 0."""
    rows = list(range(first + 1, first + 1 + len(lengths)))
    tokens = [[row] * length for row, length in zip(rows, lengths, strict=True)]
    return pa.record_batch(
        {
            "tokens": pa.array(tokens, pa.list_(pa.int32())),
            "targets": pa.array([[-each for each in row] for row in tokens], pa.list_(pa.int64())),
            "id": pa.array(rows, pa.int64()),
            "w": pa.array([row + 1.0 for row in rows], pa.float32()),
        }
    )


def bucket(*names, lengths=LENGTHS):
    return {"bucket": dict.fromkeys(names, lengths)}


def check_batch(x, labels, weights):
    """Check the columns of a batch of rows against each other; return the number and the length of each row."""
    tokens, present = x["tokens"], x["present"]
    assert tokens.shape == present.shape
    assert tokens.shape[1] in LENGTHS
    assert (present == (tokens != 0)).all()
    assert (np.sort(~present, axis=1) == ~present).all()  # padding comes last
    if isinstance(labels, dict):
        assert (labels["targets"] == -tokens).all()
        real = ~np.signbit(weights).all(axis=1)
        assert (weights == np.where(present, x["id"][:, None] + 1.0, 0))[real].all()
    else:
        assert (labels == x["id"]).all()
        real = ~np.signbit(weights)
        assert (weights == x["id"] + 1.0)[real].all()
    return list(zip(x["id"][real].tolist(), present[real].sum(axis=1).tolist(), strict=True))


@pytest.mark.deep
@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.lists(st.integers(0, 25), max_size=30), min_size=1, max_size=3).filter(any),
    batch=st.integers(3, 7),
    of_values=st.booleans(),
    seed=st.integers(0, 3),
    shuffle=st.booleans(),
)
def test_each_row_is_taken_once_in_as_many_steps_on_all_workers(
    tmp_path_factory, lengths, batch, of_values, seed, shuffle
):
    firsts = np.cumsum([0, *map(len, lengths)])
    batches = [batch_of(own, int(first)) for own, first in zip(lengths, firsts, strict=False)]
    feeds = feeds_of(tmp_path_factory.mktemp("rows"), *batches)
    options = {"features": ["tokens", "id"], "sample_weight": "w", "too_long": "cut", "seed": seed}
    if of_values:
        options |= {"label": ["targets"], **bucket("tokens", "targets")}
    else:
        options |= {"features": ["tokens", "id"], "label": "id", **bucket("tokens")}

    def passes(feed, **more):
        found = feed.batches(batch, **options, shuffle=shuffle, **more)
        return [list(found) for _ in range(2)]

    flat = [min(length, LENGTHS[-1]) for own in lengths for length in own]
    epochs = on_all(feeds, passes)
    steps = len(epochs[0][0])
    for epoch in range(2):
        assert {len(own[epoch]) for own in epochs} == {steps}
        rows = [row for own in epochs for element in own[epoch] for row in check_batch(*element)]
        assert sorted(rows) == list(enumerate(flat, 1))
        for step in zip(*(own[epoch] for own in epochs), strict=True):
            real = {x["tokens"].shape[1]: rows for x, y, weights in step if (rows := check_batch(x, y, weights))}
            assert len(real) == 1
            assert max(length for _, length in next(iter(real.values()))) <= next(iter(real))
    # A program that resumes has the same steps.
    for own, rest in zip(epochs, on_all(feeds, lambda feed: passes(feed, first_step=steps + steps // 2)), strict=True):
        for one, other in zip(own[1][steps // 2 :], rest[0], strict=True):
            assert check_batch(*one) == check_batch(*other)


def test_rows_of_a_step_have_about_one_length_and_steps_come_in_any_order(tmp_path):
    """Of lengths like those of sentences: at most 5 % is padding, where the longest pads more than four fifths."""
    draw = np.random.default_rng(1)
    lengths = [np.minimum(512, 1 + draw.lognormal(4.0, 0.8, 8000).astype(np.int64)) for _ in range(2)]
    feeds = feeds_of(tmp_path, *(batch_of(each) for each in lengths))
    options = {"features": "tokens", "label": "id", **bucket("tokens", lengths=range(4, 520, 4))}
    one, other = on_all(feeds, lambda feed: [x["present"] for x, _, _ in feed.batches(64, **options)])
    both = [*one, *other]
    assert sum(each.sum() for each in both) / sum(each.size for each in both) > 0.95
    assert np.mean([each.mean() for each in lengths]) / 512 < 0.2
    sizes = np.array([[each.shape[1] for each in own] for own in (one, other)])
    assert np.corrcoef(sizes)[0, 1] > 0.9  # no worker waits long for one with longer rows
    assert abs(np.corrcoef(sizes[0], range(len(one)))[0, 1]) < 0.4


def test_a_dataset_has_the_same_batches(tmp_path):
    (feed,) = feeds_of(tmp_path, batch_of([3, 9, 4, 1, 0, 6, 20]))
    options = {"features": "tokens", "label": "targets", **bucket("tokens", "targets")}
    dataset = feed.dataset(2, **options)
    assert dataset.cardinality() == 4
    assert dataset.element_spec[0]["tokens"].shape == (None, None)
    for (x, y, weights), (own_x, own_y, own_weights) in zip(dataset, feed.batches(2, **options), strict=True):
        assert {name: each.numpy().tolist() for name, each in x.items()} == {k: v.tolist() for k, v in own_x.items()}
        assert y.numpy().tolist() == own_y.tolist()
        assert weights.numpy().tolist() == own_weights.tolist()


TOKENS = {"features": "tokens", "label": "targets"}


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({**TOKENS, **bucket("tokens", "targets", lengths=[4, 8])}, FeedError, "array of 9 values in row 1 .*'cut'"),
        ({**TOKENS, **bucket("tokens", lengths=[])}, SpecError, "the same lengths for all, each above 0"),
        ({**TOKENS, **bucket("tokens", lengths=[8, 4])}, SpecError, "the same lengths for all, each above 0"),
        ({**TOKENS, **bucket("tokens", lengths=[True])}, SpecError, "the same lengths for all, each above 0"),
        ({**TOKENS, "bucket": {"tokens": 8}}, SpecError, "the same lengths for all, each above 0"),
        ({**TOKENS, "bucket": {"tokens": [8], "targets": [9]}}, SpecError, "the same lengths for all, each above 0"),
        ({**TOKENS, "bucket": ["tokens"]}, SpecError, "expected a dict of columns"),
        ({**TOKENS, **bucket("tokens"), "too_long": "split"}, SpecError, "'split': expected one of 'error', 'cut' w"),
        ({**TOKENS, **bucket("tokns")}, FeedError, "bucket names column 'tokns'"),
        ({**TOKENS, **bucket("tokens", "targets", "id"), "features": ["tokens", "id"]}, FeedError, "'id' holds single"),
        ({**TOKENS, **bucket("tokens", "text"), "features": ["tokens", "text"]}, FeedError, "'text' holds strings"),
        ({**TOKENS, **bucket("tokens"), "features": ["tokens", "present"]}, FeedError, "'present' would take the"),
        ({**TOKENS, **bucket("tokens", "targets", "pair"), "features": ["tokens", "pair"]}, FeedError,
         "row 0 .* has 3 values .* 2 "),
        ({**TOKENS, **bucket("tokens", "targets"), "label": ["targets", "id"]}, FeedError, "name all or none of them"),
        ({**TOKENS, **bucket("tokens", "targets"), "sample_weight": "pair"}, FeedError, "one weight each"),
        ({"features": "tokens", "label": "id", **bucket("tokens", "targets"), "sample_weight": "targets"}, FeedError,
         "weights of values need labels of values"),
        ({**TOKENS, **bucket("tokens"), "pack": {"tokens": 8}}, SpecError, "pack and bucket both say what a row is"),
    ],
)  # fmt: skip
def test_what_can_not_be_in_buckets_is_named(tmp_path, options, error, words):
    rows = batch_of([3, 9])
    rows = rows.append_column("text", pa.array([["a"], ["b"] * 2]))
    rows = rows.append_column("pair", pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32())))
    rows = rows.append_column("present", pa.array([1, 2]))
    (feed,) = feeds_of(tmp_path, rows)
    with pytest.raises(error, match=words):
        list(feed.batches(2, **options))

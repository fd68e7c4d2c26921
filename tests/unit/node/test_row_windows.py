"""Windows of ordered rows: beside a reference in plain Python, on several workers, with gaps and short keys."""

import datetime
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorflowonspark as tfos
from tensorflowonspark.errors import FeedError, SpecError
from tests.support.workers_in_threads import feeds_of, on_all

DAY = datetime.date(2026, 1, 1)


def batch_of(rows):
    """Return rows of (store, day), whose value names both."""
    stores, days = zip(*rows, strict=True) if rows else ((), ())
    values = [100.0 * store + day for store, day in rows]
    return pa.record_batch(
        {
            "store": pa.array([f"s{store}" for store in stores], pa.string()),
            "day": pa.array([DAY + datetime.timedelta(days=day) for day in days], pa.date32()),
            "sales": pa.array(values, pa.float32()),
            "pair": pa.array([[each, -each] for each in values], pa.list_(pa.float64())),
            "w": pa.array([each + 1 for each in values], pa.float32()),
        }
    )


def reference(rows, window):
    """Return the windows as (values of the window with None for missing ones, values after it)."""
    found, length, horizon = [], window.length, window.horizon
    gap = window.gap.days if isinstance(window.gap, datetime.timedelta) else window.gap
    for store in {store for store, _ in rows}:
        days = sorted(day for each, day in rows if each == store)
        runs = [[days[0]]]
        for before, day in pairwise(days):
            if gap is not None and day - before > gap:
                runs.append([])
            runs[-1].append(day)
        for run in runs:
            values = [100.0 * store + day for day in run]
            if len(run) < length + horizon:
                if window.short == "pad" and len(run) > horizon:
                    values = [None] * (length + horizon - len(run)) + values
                else:
                    continue
            ends = range(len(values), length + horizon - 1, -window.stride)
            starts = [(end - length - horizon, end - horizon, end) for end in ends]
            found += [(tuple(values[begin:middle]), tuple(values[middle:end])) for begin, middle, end in starts]
    return sorted(found, key=repr)


def taken(feed, window, batch_size=3, **options):
    """Return the windows of an epoch, and how many steps there were."""
    given = {"features": "sales", **({"label": "sales"} if window.horizon else {}), **options}
    found, steps = [], 0
    for batch in feed.batches(batch_size, window=window, **given):
        steps += 1
        if window.horizon:
            x, y, weights = batch
        else:
            x, y, weights = batch, np.zeros((len(batch["sample_weight"]), 0)), batch["sample_weight"]
        x = x if isinstance(x, dict) else {"sales": x}
        for place in np.flatnonzero(~np.signbit(weights)):
            present = x["present"][place] if "present" in x else np.ones(window.length, bool)
            values = [float(each) if there else None for each, there in zip(x["sales"][place], present, strict=True)]
            assert not np.any(x["sales"][place][~present])
            found.append((tuple(values), tuple(map(float, y[place]))))
    return found, steps


ROWS = st.sets(st.tuples(st.integers(0, 5), st.integers(0, 12)), min_size=1, max_size=50)


WINDOWS = st.builds(
    tfos.Window,
    st.just("store"),
    st.just("day"),
    length=st.integers(1, 4),
    horizon=st.integers(0, 3),
    stride=st.integers(1, 3),
    gap=st.sampled_from([None, 1, 2, datetime.timedelta(days=1)]),
    short=st.sampled_from(["drop", "pad"]),
)


@settings(max_examples=60)
@given(rows=ROWS, window=WINDOWS, workers=st.integers(1, 3), data=st.data())
def test_all_windows_once_on_any_number_of_workers(tmp_path_factory, rows, window, workers, data):
    order = data.draw(st.permutations(sorted(rows)))
    parts = [[row for row in order if row[0] % workers == worker] for worker in range(workers)]
    expected = reference(rows, window)
    feeds = feeds_of(tmp_path_factory.mktemp("cache"), *map(batch_of, parts))
    if not expected:
        with pytest.raises(FeedError, match="no key has"):
            on_all(feeds, lambda feed: taken(feed, window))
        return
    found, steps = zip(*on_all(feeds, lambda feed: taken(feed, window)), strict=True)
    assert sorted((each for of in found for each in of), key=repr) == expected
    assert len(set(steps)) == 1


def feed_of(directory, rows, **columns):
    batch = batch_of(rows)
    for name, values in columns.items():
        batch = batch.set_column(batch.schema.get_field_index(name), name, values)
    (feed,) = feeds_of(directory, batch)
    return feed


TEN = [(0, day) for day in range(10)]


def test_features_labels_and_weights_have_the_rows_of_their_places(tmp_path):
    window = tfos.Window("store", "day", length=3, horizon=2)
    feed = feed_of(tmp_path, TEN)
    (x, y, weights), *_ = feed.batches(
        2, window=window, features=["sales", "pair"], label=["pair"], sample_weight="w", shuffle=False
    )
    assert x["sales"].tolist() == [[0, 1, 2], [1, 2, 3]]
    assert x["pair"][1].tolist() == [[1, -1], [2, -2], [3, -3]]
    assert y["pair"][0].tolist() == [[3, -3], [4, -4]]
    assert weights.tolist() == [3, 4]  # of the last row of each window


def test_a_program_resumes_at_a_step_and_each_epoch_has_an_order_of_its_own(tmp_path):
    window = tfos.Window("store", "day", length=2)
    feed = feed_of(tmp_path, TEN)
    passes = feed.batches(3, window=window, features="sales", label="sales", seed=3)
    epochs = [[x.tolist() for x, *_ in passes] for _ in range(2)]
    assert epochs[0] != epochs[1]
    again = feed.batches(3, window=window, features="sales", label="sales", seed=3, first_step=4)
    assert [x.tolist() for x, *_ in again] == epochs[1][1:]


@pytest.mark.parametrize(
    ("kind", "step", "gap"),
    [
        (pa.timestamp("us", "UTC"), 86_400_000_000, datetime.timedelta(days=1)),
        (pa.timestamp("us"), 86_400_000_000, 86_400),
        (pa.int16(), 1, 1),
        (pa.uint64(), 1, 1),
        (pa.float64(), 0.5, 0.5),
    ],
)
def test_the_order_may_be_of_any_kind_with_steps(tmp_path, kind, step, gap):
    days = [0, 1, 2, 4, 5, 6]
    feed = feed_of(tmp_path, [(0, day) for day in days], day=pa.array([day * step for day in days]).cast(kind))
    found, _ = taken(feed, tfos.Window("store", "day", length=2, gap=gap))
    assert sorted(found) == [((0, 1), (2,)), ((4, 5), (6,))]


def test_keys_of_several_columns(tmp_path):
    rows = [(store, day) for store in range(2) for day in range(6)]
    feed = feed_of(tmp_path, rows, w=pa.array([day % 2 for _, day in rows], pa.int32()))
    found, _ = taken(feed, tfos.Window(["store", "w"], "day", length=2))
    assert sorted(found) == [
        ((100.0 * s + d, 100.0 * s + d + 2), (100.0 * s + d + 4,)) for s in range(2) for d in range(2)
    ]


def test_a_key_on_two_workers_is_named(tmp_path):
    feeds = feeds_of(tmp_path, batch_of(TEN[:5]), batch_of(TEN[5:]))
    with pytest.raises(
        FeedError, match=r"key 's0' are on workers . and .: .*df.repartition\('store'\), rebalance=False"
    ):
        on_all(feeds, lambda feed: taken(feed, tfos.Window("store", "day", length=2)))


@pytest.mark.parametrize(
    ("change", "options", "error", "text"),
    [
        ({"day": pa.array([DAY] * 10)}, {}, FeedError, "'day' is datetime.date.* in two rows of the key 's0'"),
        ({"store": pa.array(["a"] * 9 + [None])}, {}, FeedError, "'store'.* is null in row 9"),
        ({"day": pa.array([DAY] + [None] * 9)}, {}, FeedError, "'day'.* is null in row 1"),
        ({"store": pa.array([0.0, -0.0] * 5)}, {}, FeedError, "'store' holds fractions"),
        ({"day": pa.array([float("nan")] * 10)}, {}, FeedError, "'day'.* holds NaN"),
        ({"day": pa.array(list("abcdefghij"))}, {}, FeedError, "'day' is of type string"),
        ({}, {"window": ("shop", "day", 2)}, FeedError, "no column 'shop'"),
        ({}, {"window": ("store", "day", 20)}, FeedError, "no key has 21 rows"),
        ({}, {"features": "store"}, FeedError, "'store' holds strings"),
        ({}, {"label": None}, SpecError, "name the label"),
        ({}, {"pack": {"pair": 2}}, SpecError, "pack and window"),
        ({}, {"features": ["sales", "w"], "sample_weight": "w"}, FeedError, "a weight and a feature"),
        ({}, {"window": "day"}, SpecError, "expected a Window"),
    ],
)
def test_what_can_not_be_right(tmp_path, change, options, error, text):
    given = {"features": "sales", "label": "sales", "window": ("store", "day", 2), **options}
    if isinstance(given["window"], tuple):
        given["window"] = tfos.Window(*given["window"])
    with pytest.raises(error, match=text):
        list(feed_of(tmp_path, TEN, **change).batches(3, **given))


@pytest.mark.parametrize(
    "wrong", [{"length": 0}, {"length": 2.5}, {"horizon": -1}, {"stride": 0}, {"gap": 0}, {"short": "cut"}, {"key": ()}]
)
def test_windows_that_can_not_be(wrong):
    with pytest.raises(SpecError, match=next(iter(wrong))):
        tfos.Window(**{"key": "store", "order": "day", "length": 2, **wrong})


def test_rows_that_are_not_kept_are_refused(tmp_path):
    feeds = feeds_of(tmp_path, batch_of(TEN), is_global=True)
    with pytest.raises(FeedError, match="order='global'"):
        taken(feeds[0], tfos.Window("store", "day", length=2))


def test_a_windows_size_is_that_of_all_its_rows(tmp_path):
    """By it a pass bounds what it gathers at once."""
    feed = feed_of(tmp_path, TEN)
    window = tfos.Window("store", "day", length=4, horizon=2)
    passes = feed.batches(3, window=window, features=["sales", "pair"], label="sales").passes
    row = {name: feed._share.rows.bytes_per_row([name]) for name in ("sales", "pair")}
    rows, _ = passes._share.all_rows(passes.selection, passes.shares, alone=False)
    assert rows.bytes_per_row(passes.selection.kinds) == pytest.approx(6 * row["sales"] + 4 * row["pair"])

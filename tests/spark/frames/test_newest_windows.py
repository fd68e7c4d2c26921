"""The newest window of each key: as one of pandas, and as models take it."""

from datetime import date, datetime, timedelta

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import functions as f

import tensorflowonspark as tfos
from tensorflowonspark.ml import KerasModel

pytestmark = pytest.mark.masters("local")
LENGTH = 4


def rows_of(orders, seed):
    """Return rows of 60 keys, of one to ten rows each with gaps, in any order."""
    random = np.random.default_rng(seed)
    rows = []
    for store in range(60):
        places = np.cumsum(random.choice([1, 1, 1, 3], size=random.integers(1, 11)))
        rows += [(store, orders(int(place)), float(random.normal()), [int(place), -int(place)]) for place in places]
    random.shuffle(rows)
    return pd.DataFrame(rows, columns=["store", "day", "sales", "pair"])


def expected(rows, gap, *, pads):
    """Return the newest window of each key: its newest day, sales, pairs, and which of its rows there are."""
    found = {}
    for store, all_own in rows.sort_values("day").groupby("store"):
        days = all_own["day"].tolist()
        start = max((at for at in range(1, len(days)) if gap is not None and days[at] - days[at - 1] > gap), default=0)
        own = all_own.iloc[start:].tail(LENGTH)
        missing = LENGTH - len(own)
        if not missing or pads:
            sales, pairs = [0.0] * missing + own["sales"].tolist(), [[0, 0]] * missing + own["pair"].tolist()
            found[store] = days[-1], sales, pairs, [False] * missing + [True] * len(own)
    return found


EPOCH = datetime(2026, 1, 1)
ORDERS = {
    "numbers": (int, 2, 2),
    "days": (lambda place: EPOCH.date() + timedelta(days=place), timedelta(days=2), timedelta(days=2)),
    "days by number": (lambda place: EPOCH.date() + timedelta(days=place), timedelta(days=2), 2),
    "seconds": (lambda place: EPOCH + timedelta(seconds=place), timedelta(seconds=2), 2.0),
    "any": (int, None, None),
}


@pytest.mark.parametrize("pads", [False, True])
@pytest.mark.parametrize("name", [pytest.param("days", marks=pytest.mark.smoke), *(n for n in ORDERS if n != "days")])
def test_each_key_has_its_newest_rows_after_the_last_gap(spark, name, pads):
    order, between, gap = ORDERS[name]
    rows = rows_of(order, seed=len(name))
    frame = spark.createDataFrame(rows).repartition(3).withColumnRenamed("sales", "sales.net")
    window = tfos.Window("store", "day", LENGTH, horizon=9, gap=gap, short="pad" if pads else "drop")
    made = tfos.newest_windows(frame, window)
    found = {
        row["store"]: (
            row["day"],
            row["sales.net"],
            [list(each) for each in row["pair"]],
            row["present"] if pads else [True] * LENGTH,
        )
        for row in made.collect()
    }
    assert found == expected(rows, between, pads=pads)
    assert made.columns == ["store", "day", "sales.net", "pair", *(["present"] if pads else [])]


def test_a_model_takes_them(spark):
    import keras

    sales, present = keras.Input((LENGTH,), name="sales"), keras.Input((LENGTH,), name="present")
    model = keras.Model([sales, present], keras.layers.Dense(2)(keras.layers.Multiply()([sales, present])))
    rows = rows_of(int, seed=3)
    windows = tfos.newest_windows(
        spark.createDataFrame(rows), tfos.Window(["store"], "day", LENGTH, short="pad"), "sales"
    )
    stage = KerasModel.from_keras(model, featuresCols=["sales", "present"])
    found = {row["store"]: row["prediction"] for row in stage.transform(windows).collect()}
    wanted = expected(rows, None, pads=True)
    inputs = [np.array([wanted[store][part] for store in wanted], "float32") for part in (1, 3)]
    np.testing.assert_allclose([found[store] for store in wanted], model.predict(inputs, verbose=0), rtol=1e-5)


WRONG = {
    "no single column 'dya' (did you mean 'day'?)": {"order": "dya"},
    "the key 'sales' holds fractions": {"key": "sales"},
    "the order 'text' has type string": {"order": "text"},
    "column 'text' has type string: windows have numbers": {"features": "text"},
    "give a number": {"gap": timedelta(days=1)},
}


@pytest.mark.smoke
def test_what_can_be_no_window_is_refused_at_once(spark):
    frame = spark.createDataFrame([(1, 1, 1.0, "a")], "store int, day int, sales double, text string")
    for text, given in WRONG.items():
        features = given.get("features", "sales")
        asked = {"key": "store", "order": "day", "length": 2, **{k: v for k, v in given.items() if k != "features"}}
        with pytest.raises(tfos.FeedError) as caught:
            tfos.newest_windows(frame, tfos.Window(**asked), features)
        assert text in str(caught.value)
    with pytest.raises(tfos.SpecError, match="expected a Window"):
        tfos.newest_windows(frame, 56)
    with pytest.raises(tfos.FeedError, match="the newest rows of a stream"):
        tfos.newest_windows(spark.readStream.format("rate").load(), tfos.Window("value", "timestamp", 2))


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([(1, 1.0), (1, 2.0), (1, 2.0)], "'day' has one value in two rows of a key"),
        ([(1, 3.0), (1, 2.0), (1, 2.0)], "'day' has one value in two rows of a key"),  # which of two is the oldest
        ([(1, 1.0), (1, None)], "'day' is null or no number"),
        ([(1, 1.0), (1, float("nan"))], "'day' is null or no number"),
        ([(None, 1.0)], "'store' is null or no number"),
    ],
)
def test_rows_whose_window_is_unknown_are_named(spark, rows, text):
    frame = spark.createDataFrame(rows, "store int, day double").withColumn("x", f.lit(1.0))
    with pytest.raises(Exception, match=text):
        tfos.newest_windows(frame, tfos.Window("store", "day", 2)).collect()


def test_equal_values_of_rows_that_are_in_no_window_do_not_matter(spark):
    frame = spark.createDataFrame([(1, 1), (1, 1), (1, 2), (1, 3)], "store int, day int").withColumn("x", f.col("day"))
    assert tfos.newest_windows(frame, tfos.Window("store", "day", 2)).first()["x"] == [2, 3]


def test_dates_of_any_key(spark):
    frame = spark.createDataFrame(
        [("a", date(2026, 1, day), day) for day in (1, 2, 3)], "store string, day date, x int"
    )
    row = tfos.newest_windows(frame, tfos.Window("store", "day", 2)).first()
    assert (row["store"], row["day"], row["x"]) == ("a", date(2026, 1, 3), [2, 3])

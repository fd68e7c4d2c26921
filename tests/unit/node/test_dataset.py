"""Batches of numpy arrays as a ``tf.data.Dataset``."""

import numpy as np
import pyarrow as pa
import pytest

from tensorflowonspark.columns import summarize
from tensorflowonspark.feed_messages import SplitManifest
from tensorflowonspark.keras.feed_tracking import StatePass
from tensorflowonspark.node.feed.feed import Feed
from tensorflowonspark.node.feed.selection import FeatureOptions, Selection
from tensorflowonspark.node.feed.shard import Shard
from tensorflowonspark.node.feed.share import Share
from tensorflowonspark.node.feed_access import KERAS

ROWS = 40


def feed_of(rows_of_others=(), number=0):
    """Return a feed of ROWS rows in two batches; the columns follow from the row's id."""
    ids = np.arange(ROWS)
    wide = pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(ids, 16).astype(np.float32)), 16)
    batch = pa.record_batch({"id": ids, "wide": wide, "small": ids.astype(np.int16), "name": ids.astype(str)})
    counts = dict(enumerate([ROWS, *rows_of_others]))
    contents = SplitManifest(counts, columns=summarize(batch), schema=batch.schema.serialize().to_pybytes())
    shard = Shard([[batch.slice(0, 15)], [batch.slice(15)]])
    return Feed(Share(contents, shard, list(counts), number, lambda progress: None, observer=KERAS))


@pytest.mark.parametrize("shuffle", [True, False])
def test_tensorflow_takes_over_gathered_rows_without_a_copy(shuffle, monkeypatch):
    from tensorflowonspark.node.feed import dataset

    memory = []

    def recorded(shape, dtype):
        array = aligned_empty(shape, dtype)
        memory.append(range(array.ctypes.data, array.ctypes.data + array.nbytes))
        return array

    aligned_empty = dataset.aligned_empty
    monkeypatch.setattr(dataset, "aligned_empty", recorded)
    options = {"features": ["wide", "small"], "dtypes": {"small": "float64"}, "shuffle": shuffle}
    for batch in feed_of().dataset(8, **options):
        for name in ("wide", "small"):
            assert any(np.asarray(memoryview(batch[name])).ctypes.data in each for each in memory)
        assert np.array_equal(batch["wide"], np.repeat(batch["small"], 16).reshape(-1, 16))


@pytest.mark.parametrize("shuffle", [True, False])
def test_an_operation_that_writes_into_its_input_changes_no_other_row(shuffle):
    data = feed_of().dataset(8, features=["id", "wide"], shuffle=shuffle)
    for _ in range(3):
        seen = [(x["id"], x["wide"]) for x in data.map(lambda x: {**x, "wide": -(x["wide"] * 2.0)})]
        ids, wide = (np.concatenate(each) for each in zip(*seen, strict=True))
        assert sorted(ids) == list(range(ROWS))
        assert np.array_equal(wide, np.repeat(ids, 16).reshape(-1, 16) * -2)


@pytest.mark.parametrize("others", [[], [ROWS, ROWS], [ROWS, ROWS + 30]])
def test_an_epoch_has_the_rows_and_the_order_of_its_numpy_batches(others):
    """Also with two other workers, which a batch of seven does not share evenly."""
    feed, options = feed_of(others), {"features": ["id", "wide", "small", "name"], "seed": 3}
    data, batches = feed.dataset(7, **options), feed.batches(7, **options)
    for _ in range(2):
        for tensors, arrays in zip(data, batches, strict=True):
            for name, values in arrays.items():
                text = values.astype(bytes) if name == "name" else values
                assert np.array_equal(tensors[name], text), name


@pytest.mark.deep
@pytest.mark.parametrize(
    ("others", "batch_size"), [([], 8), ([3 * ROWS], 16), ([ROWS], 16), ([ROWS], 15), ([3 * ROWS], 15)]
)
def test_a_pass_over_the_real_rows_has_the_declared_number_of_batches(others, batch_size):
    data = feed_of(others).dataset(batch_size, features="id")
    assert len(list(data)) == len(data)
    with StatePass.begin():
        found = [batch["id"].numpy().tolist() for batch in data]
    assert len(found) == len(data)
    assert sorted(sum(found, [])) == list(range(ROWS))


def test_tensorflow_is_not_given_the_memory_of_the_rows_that_are_kept():
    """It would write there: three workers that evaluated a network with a Rescaling were ended by SIGSEGV."""
    from tensorflowonspark.node.feed.dataset import flat_arrays

    batch = pa.record_batch({"x": pa.array(np.arange(100, dtype=np.float32)), "image": [b"1234"] * 100})
    contents = SplitManifest({}, columns=summarize(batch), schema=batch.schema.serialize().to_pybytes())
    selection = Selection(contents, FeatureOptions(features=["x", "image"], shapes={"image": (2, 2)}))
    rows = Shard([[batch]]).reader(selection.kinds).take(np.arange(100))
    for kept, given in zip(rows.values(), flat_arrays(selection, (rows, np.ones(100, np.bool_))), strict=False):
        assert not kept.flags.writeable
        assert given.flags.writeable
        assert np.array_equal(kept, given)
        assert not np.shares_memory(kept, given)

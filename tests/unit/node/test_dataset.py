"""Batches of numpy arrays as a ``tf.data.Dataset``."""

import numpy as np
import pyarrow as pa

from tensorflowonspark.columns import summarize
from tensorflowonspark.feed_messages import SplitManifest
from tensorflowonspark.node.feed.selection import FeatureOptions, Selection
from tensorflowonspark.node.feed.shard import Shard


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

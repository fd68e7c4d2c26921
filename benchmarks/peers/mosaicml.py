"""A process that reads its share of shards with mosaicml-streaming, as rank of two."""

import time

import numpy as np
from streaming import StreamingDataLoader, StreamingDataset

from benchmarks.common.rounds import serve_rounds
from benchmarks.peers import passes


def stack(rows):
    """Return the rows of a batch as arrays."""
    return np.stack([each["features"] for each in rows]), np.array([each["label"] for each in rows])


def read(request):
    """Return what `passes.pass_over` returns."""
    ready = time.time()
    rows = StreamingDataset(local=request["directory"], shuffle=True, batch_size=passes.BATCH)
    loaders = request["loaders"]
    loader = StreamingDataLoader(
        rows, batch_size=passes.BATCH, num_workers=loaders, persistent_workers=loaders > 0, collate_fn=stack
    )
    return passes.pass_over(lambda: loader, ready)


if __name__ == "__main__":
    serve_rounds(read)

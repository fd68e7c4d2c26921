"""A process that reads its share of a directory of Parquet files with pyarrow, as one writes it by hand."""

import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from benchmarks.common.rounds import serve_rounds
from benchmarks.peers import passes


def row_groups(directory, rank):
    """Return every second row group, beginning with that of this rank."""
    paths = sorted(Path(directory).glob("*.parquet"))
    files = [pq.ParquetFile(path, memory_map=True) for path in paths]
    found = [(file, group) for file in files for group in range(file.num_row_groups)]
    return found[rank::2]


def arrays(file, group):
    """Return the features of a row group as a matrix, and the numbers of its rows."""
    table = file.read_row_group(group)
    features = table["features"].combine_chunks().flatten().to_numpy()
    return features.reshape(-1, passes.WIDTH), table["label"].to_numpy()


def batches(x, y, random):
    """Return an iterator over shuffled batches."""
    order = random.permutation(len(y))
    picks = (order[begin : begin + passes.BATCH] for begin in range(0, len(order), passes.BATCH))
    return ((x[pick], y[pick]) for pick in picks)


def read(request):
    """Return what `passes.pass_over` returns; each epoch reads the files again unless the rows are kept."""
    ready = time.time()
    random = np.random.default_rng(request["rank"])
    groups = row_groups(request["directory"], request["rank"])
    whole = []

    def kept():
        if not whole:
            parts = [arrays(*each) for each in groups]
            whole.extend(np.concatenate(each) for each in zip(*parts, strict=True))
        return batches(*whole, random)

    def anew():
        for number in random.permutation(len(groups)):
            yield from batches(*arrays(*groups[number]), random)

    return passes.pass_over(kept if request["kept"] else anew, ready)


if __name__ == "__main__":
    serve_rounds(read)

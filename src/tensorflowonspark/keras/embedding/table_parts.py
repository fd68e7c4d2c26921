"""A table's rows as parts of a checkpoint, which each worker writes for itself, and any number of workers read.

A part is a block of one worker's rows, or of a slot, as a NumPy file ``LAYER/RANK-of-WORKERS/VARIABLE-PART.npy``. A
file ``about.json`` beside them describes the table. A reader takes only the parts of workers that had any of its rows:
its ids and theirs agree modulo the greatest common divisor of both numbers of workers.
"""

import io
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorflowonspark.errors import CheckpointError
from tensorflowonspark.keras.archives import parsed
from tensorflowonspark.keras.embedding.table import Table

_ABOUT = "about.json"


def written_parts(table: Table, layer: str) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the contents of each part of this worker's rows, of which one is in memory at a time."""
    folder = f"{layer}/{table.rank:05d}-of-{table.workers:05d}"
    for name, array in table.arrays():
        file = io.BytesIO()
        np.save(file, array)
        yield f"{folder}/{name}.npy", file.getvalue()
    about = {
        **_shape(table),
        **table.about(),
        "block_rows": table.block_rows,
        "steps": int(table.steps.numpy()),
        "learning_rate": float(table.learning_rate.numpy()),
    }
    yield f"{folder}/{_ABOUT}", json.dumps(about).encode()


def read_parts(table: Table, layer: str, names: Sequence[str], read: Callable[[str], bytes]) -> None:
    """Take this worker's rows of a layer's table from the parts of a checkpoint, of which `names` are all.

    If the checkpoint has no such table, or one of another shape or optimizer, or a file that can't be read, it is a
    `CheckpointError`.
    """
    pattern = re.compile(rf"{re.escape(layer)}/(\d+)-of-(\d+)/{re.escape(_ABOUT)}")
    found = [(match[0], int(match[1]), int(match[2])) for name in names if (match := pattern.fullmatch(name))]
    if not found:
        raise CheckpointError(
            f"the checkpoint has no rows of ShardedEmbedding {layer!r}: give each layer the name that it had when the "
            "checkpoint was written"
        )
    writers = found[0][2]
    if missing := sorted(set(range(writers)) - {rank for _, rank, workers in found if workers == writers}):
        raise CheckpointError(
            f"the checkpoint has only a part of the rows of ShardedEmbedding {layer!r}: what {len(missing)} of the "
            f"{writers} workers that wrote it had is missing (the first: worker {missing[0]}). Let all nodes write to "
            "one directory that each of them sees"
        )
    table.clear()
    divisor = math.gcd(writers, table.workers)
    for path, rank, workers in found:
        if (rank - table.rank) % divisor:
            continue
        with parsed(f"{path} of a checkpoint"):
            about = json.loads(read(path))
            _check_fit(table, layer, about)
            table.steps.assign(about["steps"])
            table.learning_rate.assign(about["learning_rate"])

            def array(name: str, folder: str = path.removesuffix(_ABOUT)) -> npt.NDArray[Any]:
                return np.asarray(np.load(io.BytesIO(read(f"{folder}{name}.npy")), allow_pickle=False))

            table.load(rank, workers, about, array)


def _check_fit(table: Table, layer: str, about: dict[str, Any]) -> None:
    expected = _shape(table)
    different = [each for each, value in expected.items() if about.get(each) != value]
    if different:
        raise CheckpointError(
            f"the rows of ShardedEmbedding {layer!r} in the checkpoint do not fit: {different[0]} is "
            f"{about.get(different[0])!r} there, and {expected[different[0]]!r} here"
        )
    if about["block_rows"] < 1:
        raise ValueError(f"block_rows is {about['block_rows']}")


def _shape(table: Table) -> dict[str, Any]:
    return {"rows": table.rows, "dim": table.dim, "optimizer": table.optimizer.name}

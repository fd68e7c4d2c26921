"""Trainings on several hosts that are drawn at random: how they get their rows, the workers, and a failure."""

import random
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tensorflowonspark.node.feed.global_order import global_order
from tests.support.resumed_cluster import PROGRAM
from tests.support.tfrecord_files import write_rows

SPACING = 10_000  # of the ids of partitions that follow each other


class Way(NamedTuple):
    """How a cluster gets its rows, and whether other workers go on with them within an epoch."""

    kind: str
    start: str = "all_rows"
    cache: str | None = "disk"
    shuffle: str | None = None
    resizes: bool = True
    order: str = "worker"


WAYS = {
    "train": Way("train"),
    "train, in memory": Way("train", cache="memory"),
    "train, global": Way("train", shuffle="global", resizes=False),
    "train, first rows": Way("train", start="first_rows"),
    "run": Way("run"),
    "run, first rows": Way("run", start="first_rows"),
    "parquet": Way("parquet"),
    "parquet anew": Way("parquet", cache=None),
    "tfrecord": Way("tfrecord"),
    "train, order of all": Way("train", order="global"),
    "run, order of all": Way("run", order="global"),
    "parquet, order of all": Way("parquet", order="global"),
    "tfrecord anew": Way("tfrecord", cache=None, resizes=False),
}
FAILURES = {  # with how often each is drawn
    "node dies": 3,
    "kill node": 2,
    "kill supervisor": 3,
    "kill executor": 3,
    "cut": 4,
    "kill host": 2,
    "notice": 4,  # that the host goes; then it is killed
    "notice withdrawn": 2,
    "decommission": 3,
    "none": 2,
}


@dataclass(frozen=True)
class Draw:
    """A training, and what happens to it.

    Attributes
    ----------
    seed : int
        That it was drawn with.
    way : str
        How it gets its rows.
    workers : list of int
        Of its clusters, one after the other. If there are two, the first one has no restarts and stops early.
    elastic : bool
        Whether a restart takes as many workers as there are slots for, from two to three.
    sizes : list of int
        The rows of each partition, or row group, or file.
    batch_sizes : list of int
        Of each cluster.
    order, epochs, every, pace, takes
        As of the program.
    failure : str
        One of `FAILURES`, in the first cluster.
    worker : int
        Which one, if it happens at a step.
    step : int or None
        Its moment; or it happens some time after the begin.
    after, cut, revived : float
        Seconds: after which it happens, a cut or a notice lasts, and the killed host is started again.
    host : int
        Which one, if it happens after a time.
    saves : dict
        Settings of the checkpoints.
    """

    seed: int
    way: str
    workers: list
    elastic: bool
    sizes: list
    batch_sizes: list
    order: int | None
    epochs: int
    every: int
    pace: float
    takes: int | None
    failure: str
    worker: int
    step: int | None
    after: float
    cut: float
    revived: float
    host: int
    saves: dict

    @classmethod
    def from_seed(cls, seed):
        draw = random.Random(seed)
        way = draw.choice(list(WAYS))
        before, after = draw.choice([2, 3]), draw.choice([2, 3])
        failure = draw.choices(list(FAILURES), list(FAILURES.values()))[0]
        resized = WAYS[way].resizes and (before != after or failure == "none")
        sizes = [draw.randrange(60) for _ in range(draw.randrange(2, 9))]
        sizes[draw.randrange(len(sizes))] = 0
        sizes[draw.randrange(len(sizes))] += 30 + draw.randrange(30)
        batch_size = draw.randrange(7, 40)
        epochs, steps = draw.randrange(1, 4), -(-sum(sizes) // batch_size)
        most = max(2, epochs * steps)
        takes = draw.randrange(most // 2, most) if resized else None
        return cls(
            seed=seed,
            way=way,
            workers=[before, after] if resized else [before],
            elastic=WAYS[way].resizes and not resized and draw.random() < 0.3,
            sizes=sizes,
            batch_sizes=[batch_size, batch_size if draw.random() < 0.7 else draw.randrange(7, 40)],
            order=draw.choice([None, 0, 5]),
            epochs=epochs,
            every=draw.randrange(1, 6),
            pace=min(0.3, draw.uniform(2.0, 4.0) / most),
            takes=takes,
            failure=failure,
            worker=draw.randrange(before),
            step=draw.randrange(1, max(2, takes or most)) if failure == "node dies" or draw.random() < 0.6 else None,
            after=draw.uniform(0.0, 8.0),
            cut=draw.uniform(1.0, 8.0),
            revived=draw.uniform(2.0, 10.0),
            host=draw.randrange(1, 4),
            saves={"wait": draw.random() < 0.5, "copies": draw.randrange(2)},
        )

    @property
    def ids(self):
        return [number * SPACING + each for number, size in enumerate(self.sizes) for each in range(size)]

    @property
    def steps(self):
        """The rows of each step; None if they depend on the workers, or on where Spark has sorted them."""
        way = WAYS[self.way]
        if way.order == "worker" or way.kind == "run" or (len(self.workers) > 1 and len(set(self.batch_sizes)) > 1):
            return None
        ids, size = np.array(self.ids), self.batch_sizes[0]
        sizes = [each for each in self.sizes if each]
        orders = (ids[global_order(sizes, self.order, epoch)] for epoch in range(self.epochs))
        return [sorted(order[start : start + size]) for order in orders for start in range(0, len(ids), size)]

    @property
    def summary(self):
        """What it is, in a line."""
        workers = "2 to 3" if self.elastic else " then ".join(map(str, self.workers))
        moment = (
            "" if self.failure == "none" else f" at step {self.step}" if self.step else f" after {self.after:.1f} s"
        )
        saves = ", ".join(f"{name}={value}" for name, value in self.saves.items())
        return f"{self.way}, {workers} workers, {saves}, {self.failure}{moment}"

    def files(self, directory):
        """Return where the rows are that the program reads itself."""
        return directory / ("rows.parquet" if WAYS[self.way].kind == "parquet" else "rows")

    def write_files(self, directory):
        """Write the rows, if the program reads them itself."""
        starts = (number * SPACING for number in range(len(self.sizes)))
        ids = [pa.array(range(start, start + size)) for start, size in zip(starts, self.sizes, strict=True) if size]
        kind, path = WAYS[self.way].kind, self.files(directory)
        if kind == "parquet":
            schema = pa.schema({"id": pa.int64()})
            with pq.ParquetWriter(path, schema) as writer:
                for each in ids:
                    writer.write_table(pa.table([each], schema=schema))
        elif kind == "tfrecord":
            for number, each in enumerate(ids):
                write_rows(path / f"{number}.tfrecord", id=each)

    def arguments(self, directory, number):
        """Return the arguments of the program in one of the clusters."""
        way, struck = WAYS[self.way], [self.worker, self.step]
        return {
            **PROGRAM,
            "directory": str(directory),
            "cluster": number,
            "read": way.kind if way.kind in ("parquet", "tfrecord") else "",
            "files": str(self.files(directory)),
            "cache": way.cache,
            "order": way.order,
            "arriving": way.start == "first_rows",
            "batch_size": self.batch_sizes[number],
            "seed": self.order,
            "epochs": self.epochs,
            "saves": self.saves,
            "every": self.every,
            "pace": self.pace,
            "takes": None if number else self.takes,
            "marks": struck if self.step and not number else None,
            "dies": struck if self.failure == "node dies" and not number else None,
        }

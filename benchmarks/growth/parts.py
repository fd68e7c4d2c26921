"""What is measured: by part, the sizes, the contender that takes them, and its costs."""

import resource
from dataclasses import dataclass

from tensorflowonspark.driver.attempt import FILES_PER_NODE

BOUND = 1.1  # of an exponent: hardly more than in proportion
CONSTANT = 0.1  # of an exponent: hardly at all


@dataclass(frozen=True)
class Cost:
    """What one round costs, in one unit.

    Parameters
    ----------
    title : str
        What is measured.
    unit : str
        Of the values, with a space before it.
    bound : float, optional
        The target of its exponent; None for what stands beside, and has no target.
    """

    title: str
    unit: str = " s"
    bound: float | None = BOUND


@dataclass(frozen=True)
class Part:
    """Something that can be many.

    Parameters
    ----------
    what : str
        Its name, in the plural.
    sizes : tuple of int
        How many, in ascending order.
    module : str
        The contender's module.
    costs : dict of str to Cost
        By name in the result of a round; those in seconds are drawn.
    arguments : tuple of str
        Of the contender.
    request : str
        Name of the size in the contender's request.
    fresh : bool
        Whether each round has a new process, so that none reuses the memory of another.
    """

    what: str
    sizes: tuple[int, ...]
    module: str
    costs: dict[str, Cost]
    arguments: tuple[str, ...] = ()
    request: str = "size"
    fresh: bool = False

    @property
    def command(self):
        """The arguments of the contender's Python."""
        return ["-m", self.module, *self.arguments]

    def scaled(self, scale):
        """Return its sizes without those above this part of the largest, but always the two smallest."""
        return [*self.sizes[:2], *(size for size in self.sizes[2:] if size <= scale * self.sizes[-1])]


def played_nodes():
    """Return the numbers of nodes to play, up to 10,000 or as many as this process's limit of open files allows."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = 10_000 if most == resource.RLIM_INFINITY else (most - _OTHER_FILES) // FILES_PER_NODE // 100 * 100
    largest = min(10_000, allowed)
    return (*(count for count in (10, 100, 1000) if count < largest), largest)


_OTHER_FILES = 500
_SPARK = Cost("Spark's job that takes the same rows into Python", bound=None)

PARTS = {
    "partitions": Part(
        "partitions",
        (8, 80, 800, 4000),
        "benchmarks.growth.rows",
        {"ours": Cost("a feed of 40,000 rows"), "spark": _SPARK},
        ("partitions",),
    ),
    "columns": Part(
        "columns",
        (10, 100, 1000, 3000),
        "benchmarks.growth.rows",
        {"ours": Cost("a feed of 4,000 rows"), "spark": _SPARK},
        ("columns",),
    ),
    "rows": Part(
        "rows",
        (100_000, 1_000_000, 10_000_000, 100_000_000),
        "benchmarks.growth.rows",
        {"ours": Cost("a feed"), "spark": _SPARK, "memory": Cost("most memory of a node", " MB", CONSTANT)},
        ("rows",),
    ),
    "inference": Part(
        "columns",
        (10, 100, 1000),
        "benchmarks.growth.rows",
        {"ours": Cost("inference for 4,000 rows"), "spark": _SPARK},
        ("inference",),
    ),
    "files": Part(
        "files",
        (10, 100, 1000, 10_000),
        "benchmarks.growth.disk",
        {"parquet": Cost("Parquet, to the first batch"), "tfrecord": Cost("TFRecord, to the first batch")},
        ("files",),
    ),
    "checkpoints": Part(
        "megabytes",
        (1, 10, 100, 1000, 4000),
        "benchmarks.growth.disk",
        {"save": Cost("a checkpoint is saved"), "restore": Cost("a checkpoint is restored")},
        ("checkpoints",),
    ),
    "played": Part(
        "nodes",
        played_nodes(),
        "benchmarks.growth.clusters",
        {
            "up": Cost("played nodes are up"),
            "up cpu": Cost("played nodes are up: the driver's processor time"),
            "memory": Cost("played nodes are up: memory of the driver", " MB"),
            "down": Cost("played nodes are shut down"),
        },
        ("played",),
        fresh=True,
    ),
    "real": Part(
        "nodes",
        (1, 2, 4, 8, 16),
        "benchmarks.scale.real",
        {"up": Cost("real nodes are up"), "step": Cost("real nodes have taken their first step")},
        request="nodes",
    ),
    "trials": Part(
        "trials",
        (10, 100, 1000),
        "benchmarks.growth.clusters",
        {"search": Cost("a search"), "trial": Cost("a search, per trial", " s each", bound=None)},
        ("trials",),
    ),
}

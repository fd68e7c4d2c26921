"""Steps and losses of one's own: equal to one process, or refused by name; see `tests.support.own_steps`."""

import os
from collections import Counter

import pytest

import tensorflowonspark as tfos
from tests.support.keras_table.judging import WRONG
from tests.support.ladder import share_in_turn
from tests.support.own_steps import data, programs, running
from tests.support.own_steps.judging import judge

programs.load()
SHARE = int(os.environ.get("TFOS_TEST_TABLE_SHARE", "1"))  # of how many programs one is run


class SparkClusters:
    """Clusters on Spark, which are fed DataFrames."""

    def __init__(self, spark):
        self._spark = spark

    def start(self, function, args, workers, env):
        return tfos.Cluster(self._spark, function, args, num_workers=workers, env=env, logs=tfos.Logs(show="none"))

    def feed(self, cluster, workers, shape):
        cluster.train(data.frame(self._spark, workers, shape), rebalance=False)


def verdicts(spark, directory, backend, workers, shape, names):
    """Run programs on workers, and beside them in one process; return how each is judged, by name."""
    work = [(shape, list(names))]
    reference = running.start_reference(directory, backend, workers, work)
    stalled = running.run_on_workers(SparkClusters(spark), directory, backend, workers, work)
    _, errors = reference.communicate()
    assert not reference.returncode, errors
    return {
        name: judge(
            programs.ALL[name],
            backend,
            running.reference(directory, backend, workers, shape, name),
            running.outcomes(directory, backend, workers, shape, name),
            stalled.get((shape, name), ""),
        )
        for name in names
    }


def check(found, record_property):
    counts = ", ".join(
        f"{count} {kind}" for kind, count in sorted(Counter(each.kind for each in found.values()).items())
    )
    record_property("cells", f"{len(found)} cells: {counts}")
    print(f"{len(found)} cells: {counts}")
    wrong = [f"{name}: {each.why[:1500]}" for name, each in found.items() if each.kind == WRONG]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.masters("local")
@pytest.mark.parametrize(
    ("workers", "shape"), [(workers, shape) for workers in data.FEEDS for shape in data.FEEDS[workers]]
)
@pytest.mark.parametrize("backend", [programs.TENSORFLOW, programs.JAX])
def test_steps_of_ones_own_learn_what_one_process_learns(spark, tmp_path, record_property, backend, workers, shape):
    chosen = share_in_turn(programs.chosen(backend), SHARE)
    found = verdicts(spark, tmp_path, backend, workers, shape, chosen)
    check(found, record_property)

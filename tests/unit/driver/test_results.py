"""What `join`, `shutdown` and `run` return."""

import json
import pickle
import re

import pytest

import tensorflowonspark as tfos
from tensorflowonspark.config import ClusterSpec
from tensorflowonspark.driver.metrics.metrics_store import MetricsStore
from tensorflowonspark.driver.metrics.records import EpochMetrics
from tensorflowonspark.driver.run_results import last_repeats
from tensorflowonspark.errors import FailureKind
from tensorflowonspark.messages import ReportedMetrics, TrainingTotals
from tests.support.backend import cluster_on
from tests.support.scripted import ScriptedBackend, fails, returns, serves

_ends = returns(0)


def reports(*losses, first=0, then=_ends):
    """A script of a node that reports an epoch for each loss, and goes on with another script."""

    def script(node):
        for epoch, loss in enumerate(losses, first):
            node.send(TrainingTotals(metrics=(ReportedMetrics(epoch, {"loss": loss}, ended=True),)))
        then(node)

    return script


@pytest.mark.parametrize(
    ("scripts", "settings", "expected", "chief", "by_worker"),
    [
        ([returns(5)], {}, {"worker:0": 5}, 5, [5]),
        ([returns(5), returns(6)], {"num_workers": 2}, {"worker:0": 5, "worker:1": 6}, 5, [5, 6]),
        ([returns(5), returns(6)], {"chief": True}, {"chief:0": 5, "worker:0": 6}, 5, [5, 6]),
        ([serves, returns(5), serves], {"num_ps": 1, "chief": True}, {"chief:0": 5}, 5, [5]),
        ([serves, serves], {"num_ps": 1}, {}, None, []),
        ([returns(7), returns(5)], {"evaluator": True}, {"worker:0": 5}, 5, [5]),
    ],
)
def test_results_are_a_dict_by_name_with_the_chiefs_and_the_workers(scripts, settings, expected, chief, by_worker):
    with cluster_on(ScriptedBackend(*scripts), **settings) as cluster:
        results = cluster.join()
        assert results == cluster.shutdown()
    assert isinstance(results, tfos.Results)
    assert results == expected
    assert (len(results), list(results), repr(results)) == (len(expected), list(expected), repr(expected))
    assert (results.chief, results.by_worker, results.restarts) == (chief, by_worker, 0)
    assert json.loads(json.dumps(results)) == expected
    carried = pickle.loads(pickle.dumps(results))
    assert (carried, carried.chief, carried.seconds) == (results, chief, results.seconds)


def test_results_have_the_figures_of_the_training():
    backend = ScriptedBackend(reports(3.0, 2.0), reports(7.0))
    with cluster_on(backend, num_workers=2) as cluster:
        results = cluster.join()
    assert results.history == {"loss": [3.0, 2.0]}  # the chief's
    assert results.metrics.epochs == cluster.metrics().epochs
    assert 0 < results.seconds <= cluster.metrics().seconds == cluster.metrics().seconds


def test_an_epoch_that_a_restart_repeats_is_in_the_history_once():
    attempts = iter([reports(3.0, 2.0, then=fails(FailureKind.KILLED)), reports(1.5, 1.0, first=1)])
    with cluster_on(ScriptedBackend(lambda node: next(attempts)(node)), restarts=1) as cluster:
        results = cluster.join()
    assert (results.restarts, results.history) == (1, {"loss": [3.0, 1.5, 1.0]})


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("", ""),
        ("00 01 02", "00 01 02"),
        ("00 01 10 11", "10 11"),  # all again
        ("00 01 11 12", "00 11 12"),  # from a checkpoint in the midst
        ("00 01 12", "00 01 12"),
        ("00 01 00 01", "00 01 00 01"),  # two trainings
        ("00 01 02 00 01 11 12", "00 01 02 00 11 12"),
        ("00 01 02 00 01 10 11", "00 01 02 10 11"),
        ("00 01 02 00 12", "00 01 02 00 12"),
        ("00 01 11 12 22 23", "00 11 22 23"),
    ],
)
def test_which_of_repeated_epochs_count(given, kept):
    """Attempt and epoch of each record."""
    records = [EpochMetrics(int(each[1]), 0.0, None, {}, int(each[0])) for each in given.split()]
    assert " ".join(f"{each.attempt}{each.epoch}" for each in last_repeats(records)) == kept


def test_a_notebook_shows_a_table():
    results = tfos.Results({"worker:0": "<b>&", "worker:1": "x" * 1000}, ClusterSpec(2), MetricsStore().snapshot())
    html = results._repr_html_()
    assert "&lt;b&gt;&amp;" in html
    assert "<b>" not in html
    assert len(html) < 2000
    assert re.search(r">0\.0 s</div>$", html)
    with cluster_on(ScriptedBackend(reports(3.0, 2.0, then=returns(0.5)))) as cluster:
        assert re.search(r">worker:0</td>.*>0\.5</td>.*>\d+\.\d s, loss 2</div>$", cluster.join()._repr_html_())

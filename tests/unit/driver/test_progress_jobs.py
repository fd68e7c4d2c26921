"""How many jobs show the progress of a training in Spark's UI."""

from types import SimpleNamespace

import pytest

from tensorflowonspark.driver.metrics.metrics_store import MetricsStore
from tensorflowonspark.driver.metrics.records import ClusterEvent, EpochMetrics
from tensorflowonspark.driver.spark import progress_jobs


@pytest.mark.parametrize(("seconds", "shown"), [(9, 2), (500, 51), (86_400, 310)])
def test_the_epochs_of_a_day_are_some_three_hundred_jobs(monkeypatch, seconds, shown):
    """Spark keeps a thousand. Epochs of a second each, and the last one is always among them."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(progress_jobs, "time", clock)
    jobs = progress_jobs.ProgressJobs(None, MetricsStore("train"))
    texts = []
    monkeypatch.setattr(jobs, "_show", texts.append)
    for number in range(seconds):
        jobs.epoch_ended(EpochMetrics(number, 0.0, 1.0, {}))
        clock.now += 1
    jobs.happened(ClusterEvent(0.0, "ended", ""))
    assert len(texts) == pytest.approx(shown, rel=0.05)
    assert (texts[0], texts[-1]) == ("epoch 1", f"epoch {seconds}")

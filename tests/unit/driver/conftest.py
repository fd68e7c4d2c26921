"""Fixtures of the tests of the driver."""

import pytest

from tensorflowonspark.driver.dashboard import snapshots
from tests.support.played_training import PlayedTraining


@pytest.fixture
def training():
    return PlayedTraining(2)


@pytest.fixture
def served(training, monkeypatch):
    """A training and its dashboard, which does not wait at its end for pages that are about to ask."""
    monkeypatch.setattr(snapshots, "_BACK_SECONDS", 0.0)
    dashboard = training.serve(metrics_port=0)
    yield training, dashboard
    dashboard.close()

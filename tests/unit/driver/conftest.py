"""Fixtures of the tests of the driver."""

import pytest

from tests.support.played_training import PlayedTraining


@pytest.fixture
def training():
    return PlayedTraining(2)


@pytest.fixture
def served(training):
    """A training and its dashboard."""
    dashboard = training.serve(dashboard=True, metrics_port=0)
    yield training, dashboard
    dashboard.close()

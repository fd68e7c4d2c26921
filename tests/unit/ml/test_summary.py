"""The summary of a training."""

import pytest

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(180)]


def test_a_plot_of_the_history(tmp_path):
    from tensorflowonspark.ml import TrainingSummary

    summary = TrainingSummary({"loss": [3.0, 2.0, 1.5], "val_loss": [3.5, 2.5, 2.4], "accuracy": [0.1, 0.5, 0.7]})
    summary.plot(str(tmp_path / "history.png"))
    assert (tmp_path / "history.png").stat().st_size > 5000

"""The history of a training."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tensorflowonspark.columns import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class TrainingSummary:
    """The values of each metric after each epoch; those of the validation rows are named ``val_...``.

    Parameters
    ----------
    history : mapping
        The values of each metric, one for each epoch.

    Examples
    --------
    >>> summary = TrainingSummary({"loss": [2.0, 1.0], "val_loss": [2.5, 1.5]})
    >>> summary.totalIterations, summary.objectiveHistory
    (2, [2.0, 1.0])
    >>> summary
    TrainingSummary(2 epochs, loss=1, val_loss=1.5)
    >>> summary.history(spark).show()
    +-----+----+--------+
    |epoch|loss|val_loss|
    +-----+----+--------+
    |    0| 2.0|     2.5|
    |    1| 1.0|     1.5|
    +-----+----+--------+
    <BLANKLINE>
    """

    def __init__(self, history: Mapping[str, Sequence[float]]) -> None:
        self._history = {name: [float(value) for value in values] for name, values in history.items()}

    @property
    def totalIterations(self) -> int:  # noqa: N802 - Spark ML's name
        """The number of epochs."""
        return max(map(len, self._history.values()), default=0)

    @property
    def objectiveHistory(self) -> list[float]:  # noqa: N802 - Spark ML's name
        """The loss of each epoch."""
        return self._history.get("loss", [])

    @property
    def metrics(self) -> dict[str, float]:
        """The value of each metric after the last epoch."""
        return {name: values[-1] for name, values in self._history.items() if values}

    def __repr__(self) -> str:
        shown = [f"{name}={value:.4g}" for name, value in self.metrics.items()]
        return f"TrainingSummary({', '.join([f'{self.totalIterations} epochs', *shown])})"

    def history(self, spark: "SparkSession") -> "DataFrame":
        """Return the history as a DataFrame.

        Parameters
        ----------
        spark : SparkSession
            The session that makes it.

        Returns
        -------
        DataFrame
            A row for each epoch: its number ``epoch`` from 0, and a column of doubles for each metric.
        """
        columns = list(self._history.values())
        rows = [
            (epoch, *(values[epoch] if epoch < len(values) else None for values in columns))
            for epoch in range(self.totalIterations)
        ]
        types = ", ".join(["epoch int", *(f"{quoted(name)} double" for name in self._history)])
        return spark.createDataFrame(rows, types)

    def plot(self, path: str | None = None) -> Any:
        """Plot each metric over the epochs, for training and validation rows; needs matplotlib.

        Parameters
        ----------
        path : str, optional
            A file to save the picture to, in the format of its suffix.

        Returns
        -------
        matplotlib.figure.Figure

        Examples
        --------
        >>> len(TrainingSummary({"loss": [2.0, 1.0], "accuracy": [0.5, 0.9]}).plot().axes)
        2
        """
        from matplotlib.figure import Figure

        metrics = [name for name in self._history if not name.startswith("val_")]
        figure = Figure(figsize=(5 * max(1, len(metrics)), 3.6), layout="constrained")
        for axes, metric in zip(figure.subplots(1, max(1, len(metrics)), squeeze=False)[0], metrics, strict=False):
            for name, label in ((metric, "training"), (f"val_{metric}", "validation")):
                if name in self._history:
                    values = self._history[name]
                    axes.plot(range(1, len(values) + 1), values, marker="o", markersize=3, label=label)
            axes.set(xlabel="epoch", title=metric)
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.spines[["top", "right"]].set_visible(False)
            axes.legend(frameon=False)
        if path is not None:
            figure.savefig(path, dpi=120)
        return figure

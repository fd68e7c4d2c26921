"""How a training went."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tensorflowonspark.columns import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["TrainingSummary"]


class TrainingSummary:
    """What each epoch gave, by metric; those of the rows to validate on are named ``val_...``.

    Parameters
    ----------
    history : mapping
        The values of each metric, one for each epoch.

    Examples
    --------
    >>> summary = TrainingSummary({"loss": [2.0, 1.0], "val_loss": [2.5, 1.5]})
    >>> summary.totalIterations, summary.objectiveHistory
    (2, [2.0, 1.0])
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
        """How many epochs there were."""
        return max(map(len, self._history.values()), default=0)

    @property
    def objectiveHistory(self) -> list[float]:  # noqa: N802 - Spark ML's name
        """The loss of each epoch."""
        return self._history.get("loss", [])

    def history(self, spark: "SparkSession") -> "DataFrame":
        """Return a DataFrame with a row for each epoch: its number from 0, and all metrics."""
        columns = list(self._history.values())
        rows = [
            (epoch, *(values[epoch] if epoch < len(values) else None for values in columns))
            for epoch in range(self.totalIterations)
        ]
        types = ", ".join(["epoch int", *(f"{quoted(name)} double" for name in self._history)])
        return spark.createDataFrame(rows, types)

    def plot(self, path: str | None = None) -> Any:
        """Draw each metric over the epochs, with that of the rows to validate on beside it.

        Parameters
        ----------
        path : str, optional
            Where the picture goes.

        Returns
        -------
        matplotlib.figure.Figure
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

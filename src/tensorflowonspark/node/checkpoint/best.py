"""The metric that says which checkpoint is best, and its value when one is written."""

import logging
import math
from collections.abc import Mapping
from typing import Any

from tensorflowonspark.errors import SpecError, did_you_mean

_log = logging.getLogger(__name__)
_MODES = ("auto", "min", "max")


class BestMetric:
    """The metric by which the checkpoints of a training are compared.

    Without a name nothing is compared. By the mode "auto" Keras says of the loss and of its own metrics whether less or
    more is better. With an `evaluator` the values of validation come later, from there. `setting` is the one that
    names the metric, for errors.
    """

    def __init__(
        self, name: str | None = None, mode: str = "auto", *, evaluator: bool = False, setting: str = "best"
    ) -> None:
        self._setting = setting
        if name is not None and (not isinstance(name, str) or not name):
            raise SpecError(f"{setting}={name!r}: expected the name of a metric, as 'val_loss', or None")
        if mode not in _MODES:
            raise SpecError(f"mode={mode!r}: expected one of {', '.join(map(repr, _MODES))}")
        if name is None and mode != "auto":
            raise SpecError(f"mode={mode!r} is about the metric that best= names, and there is none: best='val_loss'")
        self.name = name
        self._mode = "" if mode == "auto" else mode
        self._warned = evaluator  # it is known that there is none yet

    def fields(self, metrics: Mapping[str, Any] | None, model: Any = None) -> dict[str, Any]:
        """Return what a checkpoint's record says of the metric.

        `metrics` is None where there are none, as within an epoch. A `SpecError` says that the metric is not among
        them, or that Keras does not know which values of it are better.
        """
        if self.name is None:
            return {}
        if metrics is None or not self._is_among(metrics):
            return {"metric": self.name, "mode": self._mode}
        if not self._mode:
            from tensorflowonspark.keras.direction import better_direction

            self._mode = better_direction(self.name, model, self._setting)
        value = float(metrics[self.name])
        return {"metric": self.name, "mode": self._mode, "value": value if math.isfinite(value) else None}

    def _is_among(self, metrics: Mapping[str, Any]) -> bool:
        """Return whether the metric is there; raise unless it may be later, as after an epoch without validation."""
        assert self.name is not None
        if self.name in metrics:
            return True
        names = ", ".join(sorted(metrics)) or "none"
        guess = did_you_mean(self.name, metrics)
        problem = f"{self._setting}={self.name!r} is no metric of this training{guess}: it has {names}"
        if self.name.startswith("val_") and not any(each.startswith("val_") for each in metrics):
            if not self._warned:
                self._warned = True
                _log.warning("%s; an epoch without validation_data has no value", problem)
            return False
        raise SpecError(problem)

"""Whether less or more of a metric is better, by the rule of the installed Keras."""

from typing import Any

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.hooks import callbacks_module


def better_direction(metric: str, model: Any, setting: str = "best") -> str:
    """Return whether less or more of a metric of Keras's logs is better, as ``"min"`` or ``"max"``.

    Keras 3 asks the model's metric of this name, ``tf_keras`` looks for ``acc`` and ``auc`` in it. Both rules are
    private, so a callback that follows them is shown two values. Without a model Keras knows the loss alone. If it does
    not know, it is a `SpecError`, which has the setting that names the metric.
    """
    callback = callbacks_module().EarlyStopping(monitor=metric, patience=9)
    if model is not None:
        callback.set_model(model)
    callback.on_train_begin()
    try:
        for epoch, value in enumerate((1.0, 0.0)):
            callback.on_epoch_end(epoch, {metric: value})
    except ValueError:
        raise SpecError(
            f"{setting}={metric!r}: Keras does not know whether less or more of it is better: give mode='min' or "
            "mode='max'"
        ) from None
    return "max" if callback.best else "min"

"""MLflow's own ``mlflow.pyspark.ml.autolog``: the models of this package among those that it logs."""

import sys
from contextlib import suppress
from typing import Any

from wrapt import register_post_import_hook

__all__ = ["allow_in_autolog", "autolog_takes_models"]

_AUTOLOG = "mlflow.pyspark.ml"
_OWN = "tensorflowonspark.ml.*"
_MODEL = "tensorflowonspark.ml.model.KerasModel"


def allow_in_autolog() -> None:
    """Add the models of this package to those that ``mlflow.pyspark.ml.autolog`` logs by default.

    It reads its list from a file of its own; a list that the user has given stays as it is. Without this it logs a
    pipeline with a `KerasModel` in it not at all.
    """
    register_post_import_hook(_allow, _AUTOLOG)


def _allow(module: Any) -> None:
    with suppress(AttributeError):  # another version of MLflow
        read = module._read_log_model_allowlist
        if getattr(read, "allows", "") == _OWN:
            return

        def with_own() -> set[str]:
            found = set(read())
            return found | {_OWN} if any(name.startswith("pyspark.ml.pipeline.") for name in found) else found

        with_own.allows = _OWN  # type: ignore[attr-defined]
        module._read_log_model_allowlist = with_own
        if isinstance(module._log_model_allowlist, set) and module._log_model_allowlist == read():
            module._log_model_allowlist = with_own()  # autolog was called before


def autolog_takes_models() -> bool:
    """Return whether ``mlflow.pyspark.ml.autolog`` is on in this process, and logs models of this package."""
    module = sys.modules.get(_AUTOLOG)
    if module is None:
        return False
    with suppress(Exception):  # another version of MLflow
        from mlflow.utils.autologging_utils import autologging_is_disabled, get_autologging_config

        if autologging_is_disabled("pyspark.ml") or not get_autologging_config("pyspark.ml", "log_models", True):
            return False
        names = module._log_model_allowlist or ()
        return any(name == _MODEL or (name.endswith("*") and _MODEL.startswith(name[:-1])) for name in names)
    return False

"""The registration of a logged model in a registry of MLflow, whose rules for names are checked before a training."""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorflowonspark.errors import SpecError

_UNITY_CATALOG = ("databricks-uc", "uc:")
_LEVELS = ("catalog", "schema", "model")  # of a name in Unity Catalog


@dataclass(frozen=True)
class Registration:
    """How a model is registered."""

    name: str  # empty if it is only logged
    tags: Mapping[str, Any]
    aliases: tuple[str, ...]

    @classmethod
    def of(cls, name: str | None, tags: Mapping[str, Any] | None, aliases: Sequence[str] | None) -> "Registration":
        """Return it if a registry of MLflow would accept the names; raises SpecError if not."""
        found, mlflow = cls(name or "", tags or {}, tuple(aliases or ())), sys.modules.get("mlflow")
        registry, parts = str(mlflow.get_registry_uri()) if mlflow and name else "", found.name.split(".")
        if name is not None and (not name.strip() or {"/", ":"} & {*name}):
            raise SpecError(f"the registered model's name {name!r}: expected a text without '/' and ':'")
        if name and registry.startswith(_UNITY_CATALOG) and not (len(parts) == len(_LEVELS) and all(parts)):
            raise SpecError(
                f"the registered model's name {name!r}: in Unity Catalog, which is the registry ({registry}), it has "
                f"three parts: {'.'.join(_LEVELS)}"
            )
        for alias in found.aliases:
            if not re.fullmatch(r"(?!(?i:latest|v\d+)$)[\w-]+", alias):
                raise SpecError(
                    f"alias {alias!r}: expected letters, digits, '_' and '-', and neither 'latest' nor a version's 'v1'"
                )
        if found.aliases and not name:
            raise SpecError(f"aliases {list(found.aliases)} are of a registered model: give its name")
        return found

    def register(self, uri: str) -> str:
        """Register a logged model; return the version."""
        import mlflow

        version = str(mlflow.register_model(uri, self.name, tags=self.tags or None).version)
        for alias in self.aliases:
            mlflow.MlflowClient().set_registered_model_alias(self.name, alias, version)
        return version

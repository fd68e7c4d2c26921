"""Private names of TensorFlow and Keras that nodes rely on: whether the installed versions have them.

A release of TensorFlow or Keras may rename any of them. A node tests those of a module when the module has been
imported, before it is repaired: with a missing name the repair is left out, with a warning, and training on several
replicas is refused if its results would be wrong. ``python -m tensorflowonspark.keras.repairs`` tests all, as
``tfos check`` does. This module imports neither library.
"""

import dis
import importlib.metadata
import importlib.util
import inspect
import logging
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from tensorflowonspark.errors import RequirementError

_log = logging.getLogger(__name__)

# The releases with which the tests have run, the newest ones before their release: docs/compatibility.md. The extras in
# pyproject.toml end with the same.
TESTED = {
    "tensorflow": "tensorflow>=2.16,<2.23",
    "keras": "keras>=3.10,<3.17",
    "tf_keras": "tf_keras>=2.16,<2.23",
    "jax": "jax>=0.10,<0.13",
}
JAX = "fit on several workers with JAX"  # a feature
_TESTED_ON_JAX = "keras>=3.15,<3.17"
_SHOWN = {"tensorflow": "TensorFlow", "keras": "Keras", "jax": "JAX"}
# Why this process must not train on several replicas: what the libraries lack that it has imported so far.
_problems: list[str] = []


@dataclass(frozen=True)
class Use:
    """A use of names of one module.

    A name is ``"Class.method"``, or ``"Class()._attribute"`` for what objects get; ``"()._attribute"`` is for what
    functions of the module give to objects of others.
    """

    module: str
    feature: str  # what needs them
    names: tuple[str, ...]

    @property
    def library(self) -> str:
        """The package that has the module."""
        return self.module.partition(".")[0]

    def missing(self, module: Any) -> list[str]:
        """Return the names that an imported module lacks."""
        return [name for name in self.names if not _has(module, name)]


@dataclass(frozen=True)
class Repair(Use):
    """A function that repairs a module after its import."""

    function: str = ""  # module and function of `tensorflowonspark.keras`
    required: bool = True  # whether several replicas would train wrongly, or fail, without it


def is_whole(repair: Repair, module: ModuleType) -> bool:
    """Return whether a repair fits an imported module; a missing name is warned of, and remembered."""
    missing = repair.missing(module)
    if missing:
        _note(repair, missing)
    return not missing


def test_modules(repairs: Iterable[Repair]) -> None:
    """Warn of modules that a library, which has been imported, does not have, and remember them."""
    for repair in repairs:
        if repair.module not in sys.modules and not _exists(repair.module):
            _note(repair, [""])


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


def _note(repair: Repair, missing: Iterable[str]) -> None:
    problem = problem_of(repair, missing)
    _log.warning("%s", problem)
    if repair.required:
        _problems.append(problem)


def refuse_replicas() -> None:
    """Refuse to train on several replicas, if the installed libraries lack a name without which that is wrong.

    The `RequirementError` has a line for each feature that lacks one.
    """
    if _problems:
        raise RequirementError("\n".join(_problems))


def problems_of(uses: Iterable[Use]) -> Iterator[str]:
    """Yield a line for each use whose names are missing, of the libraries that are installed; imports them."""
    without_tf_keras = importlib.util.find_spec("tf_keras") is None
    for use in uses:
        if use.library == "tf_keras" and without_tf_keras:
            continue
        try:
            missing = use.missing(importlib.import_module(use.module))
        except ImportError:
            missing = [""]
        if missing:
            yield problem_of(use, missing)


def problem_of(use: Use, missing: Iterable[str]) -> str:
    """Return a line that says which names the installed version lacks, what needs them, and what to install."""
    names = ", ".join(f"{use.module}.{name}".rstrip(".") for name in missing)
    library = use.library
    tested = _TESTED_ON_JAX if use.feature == JAX and library == "keras" else TESTED[library]
    return (
        f"{_SHOWN.get(library, library)} {_version(library)} has no {names}: {use.feature} needs it; install "
        f'"{tested}", or a release of TensorFlowOnSpark for this version'
    )


def _version(library: str) -> str:
    """Return the version of a package, whose import may not be complete."""
    for module in (library, f"{library}.src.version"):
        if version := getattr(sys.modules.get(module), "__version__", ""):
            return str(version)
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return "(of unknown version)"


def untested(library: str) -> str:
    """Return a line for a library that has been imported, if no test has run with its version; empty if one has."""
    version = _version(library)
    numbers = numbers_of(version)
    first, end = _tested(library)
    if numbers and first <= numbers < end:
        return ""
    how = "is not among" if not numbers else "is newer than" if numbers >= end else "is older than"
    return (
        f"{_SHOWN.get(library, library)} {version} {how} what was tested "
        f'("{TESTED[library]}"): names that it lacks are reported, but not what it does in another way'
    )


def too_old(library: str) -> Iterator[str]:
    """Yield a line if a library is too old to train on several replicas, though it has the names that are needed."""
    if library == "keras" and () < numbers_of(_version(library)) < _tested(library)[0]:
        yield (
            f"Keras {_version(library)} is too old for several replicas, whose metrics would count earlier batches "
            f'again in each step: install "{TESTED[library]}"'
        )


def warn_of_untested(library: str) -> None:
    """Warn of a library that has been imported, if no test has run with its version; remember if it is too old."""
    if problem := untested(library):
        _log.warning("%s", problem)
    _problems.extend(too_old(library))


def _tested(library: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the first version that was tested, and the first one after those that were."""
    first, end = map(numbers_of, TESTED[library].split(","))
    return first, end


def numbers_of(version: str) -> tuple[int, ...]:
    """Return the major and the minor number of a version."""
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def attribute_of(owner: Any, name: str) -> Any:
    """Return a function of a module, or a method of one of its classes; None if there is none."""
    for part in name.split("."):
        owner = getattr(owner, part, None)
    return owner


def _has(module: Any, name: str) -> bool:
    """Return whether a module has a function or method; of ``"Class()._attribute"``, whether its code sets that.

    A class that this version has not (an older Keras has no callback for Orbax) lacks no attribute.
    """
    path, is_attribute, attribute = name.partition("().")
    if not is_attribute:
        return attribute_of(module, name) is not None
    owner = attribute_of(module, path) if path else module
    if owner is None:
        return True
    kinds = getattr(owner, "__mro__", None) or [owner, *filter(inspect.isclass, vars(owner).copy().values())]
    functions = (each for kind in kinds for each in getattr(kind, "__dict__", {}).copy().values())
    return any(_sets(each, attribute) for each in functions)


def _sets(function: Any, attribute: str) -> bool:
    """Return whether a function assigns an attribute of this name, or has the name as a text, to set it by that."""
    code = getattr(inspect.unwrap(function) if callable(function) else function, "__code__", None)
    if code is None or attribute not in code.co_names:
        return code is not None and attribute in code.co_consts
    return any(
        each.opname in ("STORE_ATTR", "STORE_GLOBAL") and each.argval == attribute
        for each in dis.get_instructions(code)
    )

"""The distributions that contain TensorFlow and Keras: there are several of each, and two of them exclude each other.

`keras` and `keras-nightly` have the same files, as `tensorflow` and `tensorflow-cpu` do: what is installed last
overwrites the other one in part. A pre-release of TensorFlow brings `keras-nightly`.
"""

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions

_LIBRARIES = ("tensorflow", "keras", "tf_keras")


def wheels_of(module: str) -> dict[str, str]:
    """Return the versions of the distributions that contain a module, by name."""
    found = {}
    for name in sorted(set(_distributions(tuple(sys.path)).get(module, ()))):
        with suppress(PackageNotFoundError):
            found[name] = distribution(name).version
    return found


@cache
def _distributions(_path: tuple[str, ...]) -> Mapping[str, list[str]]:
    """Return the distributions of each module on the import path: reading all their lists of files takes seconds."""
    return packages_distributions()


def clashes() -> Iterator[str]:
    """Yield a line for each library of which several versions are installed into one directory."""
    for library in _LIBRARIES:
        places: defaultdict[str, dict[str, str]] = defaultdict(dict)
        for name, version in wheels_of(library).items():
            places[str(distribution(name).locate_file(""))][name] = version
        for wheels in places.values():
            if len(set(wheels.values())) > 1:
                several = " and ".join(f"{name} {version}" for name, version in wheels.items())
                remove = f"{sys.executable} -m pip uninstall {' '.join(wheels)}"
                yield f"{several} are installed into one directory: `{remove}`, then install one of them"

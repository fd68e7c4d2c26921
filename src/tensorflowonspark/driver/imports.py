"""What a program is expected to import, and to set before that, by its text: the names in its pickle or its module.

Where it is wrong, nodes only start later than they could: with a process of their own in place of a fork, or after an
import that the program does not need.
"""

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from tensorflowonspark.config import ClusterConfig
from tensorflowonspark.supervisor.forkserver.compatibility import is_read_at_import

_BYTES = 4 << 20  # of a pickle, which begins with the function, or the script and its files
_FRAMEWORK = re.compile(rb"\b(tensorflow|tf_keras|keras|jax)\b")
_SETS = re.compile(rb"\b(environ|putenv)\b")
_VARIABLE = re.compile(rb"\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b")
_OWN = "tensorflowonspark."  # modules that only read them
_OF_LOGS = "TF_CPP_"  # the variables that only change what TensorFlow logs


def expect_imports(config: ClusterConfig, function: Any) -> ClusterConfig:
    """Return a configuration that has what its program is expected to import.

    A program that names a variable which libraries read when they are imported may set it before: its nodes are not
    forked from a process that has imported them already. A function of a module is looked up there: its pickle has no
    more than its name.

    Examples
    --------
    >>> from tensorflowonspark.config import ClusterConfig, ClusterSpec
    >>> config = ClusterConfig(ClusterSpec(1), b"import keras", warm_nodes=True)
    >>> expect_imports(config, None).imports_framework
    True
    >>> config = ClusterConfig(ClusterSpec(1), b"os.environ['KERAS_BACKEND'] = 'jax'; import keras", warm_nodes=True)
    >>> expect_imports(config, None).warm_nodes
    False
    """
    pickled, source = config.program[:_BYTES], _source(function)
    sets = _may_set(pickled) or (_may_set(source) and not function.__module__.startswith(_OWN))
    return replace(
        config,
        imports_framework=bool(_FRAMEWORK.search(pickled) or _FRAMEWORK.search(source)),
        warm_nodes=config.warm_nodes and not sets,
    )


def _may_set(text: bytes) -> bool:
    """Return whether a program may set a variable that is read at an import."""
    if not _SETS.search(text):
        return False
    names = map(bytes.decode, set(_VARIABLE.findall(text)))
    return any(is_read_at_import(name) and not name.startswith(_OF_LOGS) for name in names)


def _source(function: Any) -> bytes:
    """Return the text of the module of a function that is pickled by its name; empty if there is none."""
    module = getattr(function, "__module__", None)
    path = getattr(sys.modules.get(module or ""), "__file__", None)
    by_value = module == "__main__" or "<" in getattr(function, "__qualname__", "<")  # of a lambda, or within another
    if path is None or by_value:
        return b""
    try:
        return Path(path).read_bytes()
    except OSError:  # as in a zip file
        return b""

"""Properties that are fixed at import time: a node is forked only from a server whose properties match."""

import importlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.machinery import PathFinder

# Variables that Python, TensorFlow, JAX, Keras, NumPy and their libraries read when they are started or imported. They
# read others at the time of use, and then get those of the forked node.
_PREFIXES = (
    *("ABSL_", "ARROW_", "AUTOGRAPH_", "BLIS_", "CUDA_", "DNNL_", "GLIBC_", "GOMP_", "GOTO_", "GRPC_", "HDF5_"),
    *("HIP_", "HSA_", "JAX_", "KERAS_", "KMP_", "LC_", "LD_", "MALLOC_", "MKL_", "NCCL_", "NPY_", "NUMPY_", "NVIDIA_"),
    *("OMP_", "ONEDNN_", "OPENBLAS_", "PROTOCOL_BUFFERS_", "PYTHON", "ROCM_", "SCIPY_", "SKLEARN_", "TF_", "TPU_"),
    "XLA_",
)
_NAMES = {"HOME", "LANG", "TZ"}
# TensorFlow reads the first two when its runtime starts; Spark sets the others for its Python workers.
_LATER = ("TF_CONFIG", "CUDA_VISIBLE_DEVICES", "PYTHON_UDF_", "PYTHON_DAEMON_", "PYTHON_WORKER_")


@dataclass(frozen=True)
class ImportProperties:
    """The properties of a process on which its imports depend.

    Examples
    --------
    >>> ImportProperties({"TF_USE_LEGACY_KERAS": "1"}).fits(ImportProperties({"A_VARIABLE": "1"}))
    False
    >>> ImportProperties({"TF_CONFIG": "{}"}).fits(ImportProperties({"A_VARIABLE": "1"}))
    True
    """

    environment: dict[str, str]  # the whole one
    python: str = field(default_factory=lambda: sys.executable)  # the interpreter
    # The working directory: a search path may be relative to it, and Python 3.10 looks for modules in it too.
    directory: str = field(default_factory=os.getcwd)

    def fits(self, other: "ImportProperties") -> bool:
        """Return whether a process with the other properties would have imported the same."""
        return (self.python, self.directory) == (other.python, other.directory) and _read_at_import(
            self.environment
        ) == _read_at_import(other.environment)


def _read_at_import(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if is_read_at_import(name)}


def is_read_at_import(name: str) -> bool:
    """Return whether a library reads an environment variable when it is imported.

    Examples
    --------
    >>> is_read_at_import("KERAS_BACKEND"), is_read_at_import("TF_CONFIG")
    (True, False)
    """
    return name in _NAMES or (name.startswith(_PREFIXES) and not name.startswith(_LATER))


def shadowed() -> list[str]:
    """Return the imported modules that would now be found at another path, since the user has shipped others."""
    importlib.invalidate_caches()
    found = []
    for name, module in sys.modules.copy().items():
        spec = getattr(module, "__spec__", None)
        if "." not in name and spec is not None and spec.has_location:
            current = PathFinder.find_spec(name)
            if current is not None and current.has_location and current.origin != spec.origin:
                found.append(name)
    return found

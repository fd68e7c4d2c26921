"""Bytecode of TensorFlow and Keras: whether each process that imports them compiles them anew, and what to do."""

import sys
from pathlib import Path

_LIBRARIES = ("tensorflow", "keras")
_FEW = 100  # modules without bytecode that are not worth a word: TensorFlow has two thousand


def bytecode_problem() -> str:
    """Return why each process compiles TensorFlow and Keras anew, and what to do.

    Python compiles a module that has no bytecode, and keeps the result for the next process if it may. Where it may
    not, an import of TensorFlow takes two to three times the processor time. Empty if the modules that this process has
    imported have bytecode now, or if TensorFlow is not among them.

    Examples
    --------
    >>> bytecode_problem()
    ''
    """
    specs = [
        getattr(module, "__spec__", None)
        for name, module in sys.modules.copy().items()
        if name.partition(".")[0] in _LIBRARIES
    ]
    files = [Path(spec.cached) for spec in specs if spec is not None and spec.has_location and spec.cached]
    missing = sum(not file.exists() for file in files)
    if missing < _FEW or "tensorflow" not in sys.modules:
        return ""
    packages = Path(str(sys.modules["tensorflow"].__file__)).parents[1]
    cause = "PYTHONDONTWRITEBYTECODE is set" if sys.dont_write_bytecode else f"this user can't write to {packages}"
    return (
        f"{missing} modules of TensorFlow and Keras have no bytecode, so each process compiles them anew ({cause}): "
        f"run `{sys.executable} -m compileall -q {packages}` once, in an image when it is built"
    )

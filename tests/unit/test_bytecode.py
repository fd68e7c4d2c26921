"""Whether a process finds that its imports have no bytecode."""

import os
import subprocess
import sys

import pytest

_IMPORT = "import tensorflow; from tensorflowonspark.bytecode import bytecode_problem; print(bytecode_problem())"


@pytest.mark.parametrize("forbidden", [True, False], ids=["forbidden", "written"])
def test_modules_without_bytecode_are_a_line_with_the_remedy(tmp_path, forbidden):
    package = tmp_path / "packages" / "tensorflow"
    package.mkdir(parents=True)
    names = [f"module{number}" for number in range(150)]
    for name in names:
        (package / f"{name}.py").touch()
    (package / "__init__.py").write_text("".join(f"import tensorflow.{name}\n" for name in names))
    # Written to a directory of this test: to other packages nothing is added.
    options = ["-B"] if forbidden else ["-X", f"pycache_prefix={tmp_path}/cache"]
    done = subprocess.run(
        [sys.executable, *options, "-c", f"import sys; sys.path.insert(0, {str(package.parent)!r}); {_IMPORT}"],
        env={name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
        capture_output=True,
        text=True,
        check=True,
    )
    expected = (
        "151 modules of TensorFlow and Keras have no bytecode, so each process compiles them anew "
        f"(PYTHONDONTWRITEBYTECODE is set): run `{sys.executable} -m compileall -q {package.parent}` once, in an image "
        "when it is built"
    )
    assert done.stdout.strip() == (expected if forbidden else "")

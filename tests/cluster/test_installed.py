"""The wheel, installed into an environment of its own and used outside the checkout."""

import importlib.metadata
import os
import shutil
import subprocess
import sys

import pytest

import tensorflowonspark
from tests.support.paths import ROOT
from tools import dist

_LINKED = ["matplotlib", "pandas", "pyspark", "scikit-learn", "scipy", "tensorflow"]

SCRIPT = """
import json, os
import keras
import tensorflow as tf
import tensorflowonspark

index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
with tf.distribute.MultiWorkerMirroredStrategy().scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(tf.data.Dataset.from_tensors((tf.ones((4, 2)), tf.ones((4, 1)))), verbose=0)
print("trained by", index, tensorflowonspark.__file__)
"""


def _link_large_distributions(site):
    """Link large distributions of the running environment, whose installation takes minutes.

    All others come from pip, by the requirements of the wheel.
    """
    for name in _LINKED:
        distribution = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files} - {"..", "__pycache__"}:
            (site / top).symlink_to(distribution.locate_file(top))


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A function that runs a command of an environment with the wheel, outside the checkout."""
    folder = tmp_path_factory.mktemp("installed")
    wheel, _ = dist.build(folder / "dist")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True, timeout=60)
    (site,) = folder.glob("venv/lib/python3*/site-packages")
    _link_large_distributions(site)
    binaries = folder / "venv/bin"
    pip = [sys.executable, "-m", "pip", "--python", binaries / "python", "install", "--quiet", "--no-compile"]
    subprocess.run([*pip, f"{wheel}[demo]"], check=True, timeout=300)
    of_this_one = {"PYTHONPATH", "VIRTUAL_ENV", "PYSPARK_PYTHON", "SPARK_HOME"}
    environment = {name: value for name, value in os.environ.items() if name not in of_this_one}
    environment["PATH"] = f"{binaries}:{environment['PATH']}"

    def run(*command):
        done = subprocess.run(
            [binaries / command[0], *command[1:]],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=540,
        )
        assert not done.returncode, done.stdout
        return done.stdout

    run.folder = folder
    return run


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_command_and_its_check(installed):
    assert installed("tfos", "--version") == f"tensorflowonspark {tensorflowonspark.__version__}\n"
    place = installed("python", "-c", "import tensorflowonspark as tfos; print(tfos.__file__)")
    assert place.startswith(str(installed.folder / "venv"))
    metadata = installed("python", "-c", "import importlib.metadata as m; print(m.version('tensorflowonspark'))")
    assert metadata == f"{tensorflowonspark.__version__}\n"
    assert tensorflowonspark.__version__ in installed("tfos", "check")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_script_on_two_workers(installed):
    (installed.folder / "train.py").write_text(SCRIPT)
    printed = installed("tfos", "run", "--workers", "2", "--show", "all", "--report", "run.html", "train.py")
    for index in (0, 1):
        assert f"[worker:{index}] trained by {index} {installed.folder / 'venv'}" in printed
    report = (installed.folder / "run.html").read_text()  # made of files of the package
    assert "uPlot" in report
    assert "trained by 1" in report


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_demo_without_its_checkout(installed):
    shutil.copy(ROOT / "examples/mnist/fed.py", installed.folder)
    printed = installed("python", "fed.py", "--master", "local[2]", "--epochs", "2")
    assert "accuracy on the 360 held-out scans" in printed
    assert (installed.folder / "demo-output/digits.png").stat().st_size > 10_000

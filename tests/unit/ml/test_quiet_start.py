"""What Spark's Python workers print when TensorFlow starts in them."""

import os
import subprocess
import sys

import pytest

from tensorflowonspark.ml.quiet_start import quiet_start

LINES = {
    "I0000 00:00:1795918866.467057   13522 cudart_stub.cc:31] Could not find cuda drivers on your machine": False,
    "E0000 00:00:1795918886.082952   14263 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error": False,
    "W0000 00:00:1795918886.082952   14263 gpu_device.cc:2] Cannot dlopen some GPU libraries": True,
    "a line of a module of the user's": True,
}
PROGRAM = """
import os
from tensorflowonspark.ml.distribution import prepare_tensorflow
prepare_tensorflow()
import tensorflow as tf
assert tf.constant(1).numpy() == 1
os.write(2, b"mine")
"""


@pytest.mark.parametrize("given", [None, "0"])
def test_lines_for_developers_are_left_out_unless_the_user_asks(given, capfd, monkeypatch):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    if given is not None:
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", given)
    with pytest.raises(ImportError), quiet_start():
        assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == (given or "2")
        os.write(2, "".join(f"{line}\n" for line in LINES).encode())
        raise ImportError("no TensorFlow")
    assert capfd.readouterr().err.splitlines() == [line for line, shown in LINES.items() if shown or given]


@pytest.mark.slow
def test_tensorflow_starts_without_a_line():
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "mine")

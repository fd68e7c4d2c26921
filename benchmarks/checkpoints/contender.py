"""A process with a model whose state is saved in one way: python -m benchmarks.checkpoints.contender BACKEND HOW

The store takes so many bytes in a second, and no more.
"""

import ctypes
import gc
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import fsspec
from fsspec.implementations.local import LocalFileSystem

from benchmarks.common.rounds import serve_rounds

_CHUNK = 1 << 20


class Store(LocalFileSystem):
    """Files of this machine, which are written at a fixed speed."""

    protocol = "throttled"
    bytes_per_second = 0

    def put_file(self, lpath, rpath, **_):
        """Copy a file."""
        begun, written = time.monotonic(), 0
        with open(lpath, "rb") as source, open(self._strip_protocol(rpath), "wb") as target:
            while data := source.read(_CHUNK):
                written += target.write(data)
                time.sleep(max(0.0, begun + written / self.bytes_per_second - time.monotonic()))


def make_model(megabytes):
    """Return a model with so many megabytes of weights, and the slots of Adam."""
    import keras

    width = 1024
    layers = [keras.layers.Dense(width, use_bias=False) for _ in range(max(1, int(megabytes * 1e6 / 4 / width**2)))]
    model = keras.Sequential([keras.Input((width,)), *layers])
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    for each in model.optimizer.variables:  # zeros could be compressed
        if each.shape and "float" in str(each.dtype):
            each.assign(keras.random.normal(each.shape))
    return model


class Memory:
    """The most memory that this process has in a block, beyond what it needs before its first one."""

    def __init__(self):
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # what was freed is no need
        self._before = self._value("VmRSS")

    def __enter__(self):
        Path("/proc/self/clear_refs").write_text("5")

    def __exit__(self, *_):
        self.megabytes = (self._value("VmHWM") - self._before) // 1024

    @staticmethod
    def _value(name):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith(f"{name}:")))


def _ours(model, directory, wait):
    """Return a function that saves the state, and one that waits until the checkpoint is complete."""
    from tensorflowonspark.keras.hooks import keras_backend
    from tensorflowonspark.node.checkpoint.checkpoints import Checkpoints
    from tensorflowonspark.node.checkpoint.saving import SavingNode
    from tensorflowonspark.node.checkpoint.writer import SavePolicy

    if keras_backend() == "jax":
        state = model
    else:
        import tensorflow as tf

        state = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    found = Checkpoints(f"throttled://{directory}", SavePolicy(keep=1, wait=wait), SavingNode("worker:0"))
    speed, Store.bytes_per_second = Store.bytes_per_second, float("inf")
    found.save(state, 1)  # a program's first one is written at once
    found.latest()
    Store.bytes_per_second = speed
    return lambda: found.save(state, found.latest().step + 1), found.latest


def _orbax(model, directory):
    import orbax.checkpoint as ocp

    values = {str(number): each.value for number, each in enumerate([*model.variables, *model.optimizer.variables])}
    saver = ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler())
    return (
        lambda: saver.save(f"{directory}/state", args=ocp.args.StandardSave(values), force=True),
        saver.wait_until_finished,
    )


def _step(model):
    """Change all that an optimizer changes; return the seconds."""
    begun = time.monotonic()
    for each in [*model.trainable_variables, *model.optimizer.variables]:
        if "float" in str(each.dtype):
            each.assign_add(each.value * 0)
    return time.monotonic() - begun


def main(how, megabytes, speed):
    """Serve seconds: of the step that saves, and until the checkpoint is complete; and megabytes of memory."""
    Store.bytes_per_second = float(speed) * 1e6
    fsspec.register_implementation("throttled", Store)
    model = make_model(float(megabytes))

    memory = Memory()
    directory = tempfile.mkdtemp()
    save, finish = _orbax(model, directory) if how == "orbax" else _ours(model, directory, how == "waits")

    def run_round(_request):
        usual = min(_step(model) for _ in range(3))
        with memory:
            begun = time.monotonic()
            save()
            stall = time.monotonic() - begun
            stall += max(0.0, _step(model) - usual)  # TensorFlow copies a value that is kept when it is changed
            finish()
            whole = time.monotonic() - begun
        newest = max(Path(directory).iterdir(), key=lambda each: each.stat().st_mtime)
        size = sum(each.stat().st_size for each in newest.rglob("*") if each.is_file())
        return {"stall": stall, "whole": whole, "memory": memory.megabytes, "size": size >> 20}

    try:
        serve_rounds(run_round)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    os.environ["KERAS_BACKEND"] = sys.argv[1]
    main(*sys.argv[2:])

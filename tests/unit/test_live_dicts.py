"""What reads modules, classes and objects, while another thread imports modules or sets attributes."""

import gc
import sys
import threading
import time
from itertools import cycle
from types import ModuleType

import pytest

from tensorflowonspark.bytecode import bytecode_problem
from tensorflowonspark.driver.sharing.scheduler import StepScheduler
from tensorflowonspark.keras import hooks
from tensorflowonspark.keras.private_names import Use
from tensorflowonspark.keras.sublayers import direct_sublayers
from tensorflowonspark.ml import code, serialization
from tensorflowonspark.supervisor.forkserver import compatibility
from tensorflowonspark.supervisor.forkserver.set_aside import set_aside

_SECONDS = 1.0


class _Layer:
    """Is taken for one of Keras."""


_Layer.__name__, _Layer.__module__ = "Layer", "keras"
_layer, _module, _scheduler = _Layer(), ModuleType("module_of_mine"), StepScheduler(range(500), 0)
_module.Layer = _Layer
for _place in (_Layer, _layer, _module):
    for _number in range(500):
        setattr(_place, f"attribute_{_number}", _number)

# A function, and what changes while it runs: a dict, or an object that gets attributes.
_READERS = {
    "a function is replaced where it was imported": (
        lambda: hooks._replace_copies(_module, "Layer", _module.Layer), sys.modules),
    "modules without bytecode": (bytecode_problem, sys.modules),
    "the user's modules": (code.own_modules, sys.modules),
    "modules at another path": (compatibility.shadowed, sys.modules),
    "packages that are set aside": (lambda: set_aside("package_of_nobody"), sys.modules),
    "names that a module's functions set": (
        lambda: Use("module_of_mine", "a test", ("()._name",)).missing(_module), _module),
    "names that a class sets": (lambda: Use("module_of_mine", "a test", ("Layer()._name",)).missing(_module), _Layer),
    "layers in a layer": (lambda: list(direct_sublayers(_layer)), _layer),
    "the user's code in an object": (lambda: list(serialization._own_parts(_layer)), _layer),
    "rows of workers": (lambda: _scheduler.rows, _scheduler._workers),
}  # fmt: skip


@pytest.mark.deep
@pytest.mark.parametrize(("read", "changing"), _READERS.values(), ids=_READERS)
def test_what_is_read_may_change_meanwhile(monkeypatch, busy_interpreter, read, changing):
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    for number in range(4000):  # as many as TensorFlow has, and more than tuples that Python keeps for reuse
        monkeypatch.setitem(sys.modules, f"module_of_mine.{number}", _module)
    monkeypatch.setattr(serialization, "library_of", lambda _: "keras")
    ended = threading.Event()
    thread = threading.Thread(target=_change, args=(changing, ended))
    thread.start()
    try:
        end = time.monotonic() + _SECONDS
        while time.monotonic() < end:
            read()
    finally:
        ended.set()
        thread.join()


def _change(changing, ended):
    """Add entries, and remove them again."""
    is_dict = isinstance(changing, dict)
    value = next(iter(changing.values())) if is_dict else 0
    for number in cycle(range(2000)):
        if ended.is_set():
            break
        for name, adds in ((f"another_{number}", True), (f"another_{(number + 1000) % 2000}", False)):
            if is_dict:
                changing.update({name: value}) if adds else changing.pop(name, None)
            elif adds:
                setattr(changing, name, value)
            elif name in vars(changing):
                delattr(changing, name)
    for name in [f"another_{number}" for number in range(2000)]:
        if name in (changing if is_dict else vars(changing)):
            changing.pop(name) if is_dict else delattr(changing, name)


@pytest.fixture
def busy_interpreter():
    """Threads that take turns at every opportunity; the garbage collector's runs are some, also within list()."""
    interval, threshold = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(50, *threshold[1:])
    gc.callbacks.append(_pass)
    yield
    gc.callbacks.remove(_pass)
    gc.set_threshold(*threshold)
    sys.setswitchinterval(interval)


def _pass(*_):
    for _ in range(100):
        pass

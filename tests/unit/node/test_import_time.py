"""The time of an import, beside hooks of others."""

from tests.support.commands import run_python

PROGRAM = """
import importlib.util, sys, time
from pathlib import Path

import wrapt

from tensorflowonspark.node.import_time import import_seconds, measure_import

directory = sys.argv[1]
Path(directory, "slow_module.py").write_text("import time; time.sleep(0.3); import json")
Path(directory, "broken_module.py").write_text("raise OSError('broken')")
sys.path.insert(0, directory)
seen = []
wrapt.register_post_import_hook(seen.append, "slow_module")
for name in ("slow_module", "broken_module"):
    measure_import(name)
assert importlib.util.find_spec("slow_module") is not None
time.sleep(0.3)
assert import_seconds() == 0.0  # it was looked for, and not imported
import slow_module

assert seen == [slow_module]
assert slow_module.__file__.startswith(directory)
assert 0.3 <= import_seconds() < 0.6
try:
    import broken_module
except OSError:
    pass
found = import_seconds()
time.sleep(0.1)
assert import_seconds() == found
"""


def test_an_import_is_measured_and_a_look_for_the_module_is_not(tmp_path):
    run_python(PROGRAM, tmp_path)

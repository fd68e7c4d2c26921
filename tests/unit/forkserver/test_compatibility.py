import os
import subprocess
import sys

import pytest

from tensorflowonspark.supervisor.forkserver.compatibility import ImportProperties


@pytest.mark.parametrize(
    "name",
    ["TF_USE_LEGACY_KERAS", "KERAS_BACKEND", "XLA_FLAGS", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "PYTHONPATH", "TZ"],
)
def test_what_is_read_at_import_must_be_the_same(name):
    assert not ImportProperties({name: "1"}).fits(ImportProperties({}))
    assert not ImportProperties({name: "1"}).fits(ImportProperties({name: "2"}))
    assert ImportProperties({name: "1"}).fits(ImportProperties({name: "1"}))


@pytest.mark.parametrize("name", ["TF_CONFIG", "CUDA_VISIBLE_DEVICES", "A_VARIABLE", "PYTHON_UDF_BATCH_SIZE"])
def test_what_is_read_later_may_differ(name):
    assert ImportProperties({name: "1"}).fits(ImportProperties({name: "2"}))


def test_interpreter_and_directory_must_be_the_same():
    assert not ImportProperties({}, python="/usr/bin/python").fits(ImportProperties({}))
    assert not ImportProperties({}, directory="/elsewhere").fits(ImportProperties({}))


_PROGRAM = """
import numpy, os
from tensorflowonspark.supervisor.forkserver.compatibility import shadowed
print(shadowed())
open("numpy.py", "w").close()
os.mkdir("json")  # no package: what is found later on the path comes first
print(shadowed())
"""


def test_modules_that_were_shipped_since_are_noticed(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    found = subprocess.run(
        [sys.executable, "-c", _PROGRAM], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.splitlines() == ["[]", "['numpy']"]

"""The tests of a cell of the matrix of versions are all there: one that was renamed or moved would fail every cell."""

import os
import subprocess
import sys

import pytest

from tests.support.paths import ROOT
from tools.matrix import cell_tests
from tools.matrix.cells import whole

pytestmark = pytest.mark.timeout(120)


def test_pytest_finds_each_of_them():
    names = sorted({name for cell in whole() for name in cell_tests.tests_of(cell)})
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", *names]
    found = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"TFOS_TEST_MASTERS": "local"}, capture_output=True, text=True, check=False
    )
    assert not found.returncode, found.stdout + found.stderr

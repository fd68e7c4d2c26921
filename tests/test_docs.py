"""The pages for users: all their code runs, in order, each page as one program."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "page",
    ["checkpoints.md", "dataframe.md", "failures.md", "keras-model.md", "migrating.md", "spark-ml.md", "tfrecord.md"],
)
def test_the_code_of(page, tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) > 2
    program = tmp_path / "program.py"
    program.write_text("\n".join(blocks))
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, program], check=False, cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert not done.returncode, done.stderr

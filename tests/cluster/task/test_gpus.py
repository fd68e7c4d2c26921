import subprocess
import sys
import textwrap

import pytest

_PROGRAM = """
import os, sys
from pyspark.sql import SparkSession
import tensorflowonspark as tfos

spark = (
    SparkSession.builder.master("local-cluster[1,2,1024]")
    .config("spark.ui.enabled", "false")
    .config("spark.worker.resource.gpu.amount", "2")
    .config("spark.worker.resource.gpu.discoveryScript", sys.argv[1])
    .config("spark.executor.resource.gpu.amount", "2")
    .config("spark.task.resource.gpu.amount", "1")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
print("visible", sorted(tfos.run(spark, lambda args, ctx: os.environ["CUDA_VISIBLE_DEVICES"], num_workers=2).values()))
"""


@pytest.mark.slow
def test_sparks_resource_api_end_to_end(tmp_path):
    """Two nodes in one executor with two GPUs, which a discovery script invents: one each."""
    script = tmp_path / "discover.sh"
    script.write_text("""#!/bin/sh\necho '{"name": "gpu", "addresses": ["4", "7"]}'\n""")
    script.chmod(0o755)
    (tmp_path / "program.py").write_text(textwrap.dedent(_PROGRAM))
    run = subprocess.run(
        [sys.executable, str(tmp_path / "program.py"), str(script)], capture_output=True, text=True, check=False
    )
    assert "visible ['4', '7']" in run.stdout, run.stderr

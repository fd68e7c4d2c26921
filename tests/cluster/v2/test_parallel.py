"""`TFParallel` of 2.x: one function on independent nodes."""

import pytest

from tensorflowonspark import TFParallel
from tensorflowonspark.errors import NodeError, SlotsError

# ---- the same function on nodes of their own


@pytest.mark.smoke
@pytest.mark.masters("local")
def test_parallel_nodes_know_nothing_of_each_other(spark, tmp_path):
    def program(args, ctx):
        import os
        from pathlib import Path

        assert "TF_CONFIG" not in os.environ
        Path(args, str(ctx.executor_id)).write_text(str(ctx.num_workers))

    TFParallel.run(spark.sparkContext, program, str(tmp_path), 3)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"0": "3", "1": "3", "2": "3"}
    with pytest.raises(SlotsError):
        TFParallel.run(spark.sparkContext, program, str(tmp_path), 9, use_barrier=False)


@pytest.mark.masters("local")
def test_an_error_of_a_parallel_node_is_raised(spark):
    def program(args, ctx):
        if ctx.executor_id == 1:
            raise ValueError("no such share")

    with pytest.raises(NodeError, match="worker:1 on .*no such share"):
        TFParallel.run(spark.sparkContext, program, None, 2)

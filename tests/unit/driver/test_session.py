"""The session that a cluster is given."""

import json
import os

import pytest

import tensorflowonspark as tfos


def where(args, ctx):
    """A program that tells all that a node knows of itself."""
    print(f"I am {ctx.role}")
    return {
        "role": str(ctx.role),
        "args": args,
        "config": json.loads(os.environ["TF_CONFIG"]),
        "chief": ctx.is_chief,
        "workers": ctx.num_workers,
        "pid": os.getpid(),
        "group": os.getpgrp(),
        "variable": os.environ.get("A_VARIABLE"),
        "secrets": [name for name in os.environ if "SECRET" in name],
    }


def test_what_is_no_session_is_refused():
    with pytest.raises(tfos.SpecError, match="expected a SparkSession, not str"):
        tfos.Cluster("local[2]", where)

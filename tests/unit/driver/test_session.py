"""The session that a cluster is given."""

import pytest

import tensorflowonspark as tfos


def test_what_is_no_session_is_refused():
    with pytest.raises(tfos.SpecError, match="expected a SparkSession, not str"):
        tfos.Cluster("local[2]", lambda ctx: None)

"""Which of Spark's reasons for the end of an executor are preemptions."""

import pytest

from tensorflowonspark.driver.spark.lost_executors import is_preemption


@pytest.mark.parametrize(
    ("reason", "preemption"),
    [
        ("Executor decommission: spot instance is taken", True),
        ("Executor decommission: worker decommissioned because of kill request from HTTP endpoint", True),
        ("Executor killed by driver.", True),
        ("worker lost: 10.0.0.7:34567 got disassociated", True),
        ("Command exited with code 137", False),
        ("Remote RPC client disassociated. Likely due to containers exceeding thresholds, or network issues.", False),
        ("Executor heartbeat timed out after 125000 ms", False),
        ("Container container_1_2_3 on host: h7 was preempted.", True),
        (
            "Executor for container c1 exited because of a YARN event (e.g., preemption) and not because",
            True,
        ),
        ("Container from a bad node: c1 on host: h7. Diagnostics: Container released on a *lost* node", True),
        ("Container killed by YARN for exceeding physical memory limits. 2.1 GB of 2 GB used", False),
        ("The executor with id 3 was deleted by a user or the framework.", True),
        ("The executor with id 3 exited with exit code 137(SIGKILL, possible container OOM).", False),
        ("The executor with id 3 exited with exit code 1. The API gave the following brief reason: Preempting", True),
        ("The executor with id 3 exited with exit code 1. The API gave the following brief reason: Evicted", False),
    ],
)
def test_what_spark_says(reason, preemption):
    assert is_preemption(reason) is preemption

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorflowonspark.task.gpus import divide, free_gpus, task_gpus


def test_what_spark_gives_is_taken():
    class Resource:
        addresses = ["2", "3"]  # noqa: RUF012

    assert task_gpus({"gpu": Resource()}) == ("2", "3")


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """Put a command nvidia-smi on the PATH that knows three GPUs, one of them busy."""
    script = tmp_path / "nvidia-smi"
    script.write_text(
        "#!/bin/sh\ncase $1 in\n"
        "--query-gpu=*) printf '0, GPU-a\\n1, GPU-b\\n2, GPU-c\\n';;\n"
        "--query-compute-apps=*) echo GPU-b;;\nesac\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


@pytest.mark.usefixtures("nvidia_smi")
def test_without_spark_those_that_nobody_uses():
    assert free_gpus() == ("0", "2")
    assert task_gpus({}) == ("0", "2")


def test_a_host_without_gpus(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert free_gpus() == ()


def test_disjoint_offers_stay_and_overlapping_ones_are_divided():
    assert divide([("a", ("0",)), ("a", ("1",)), ("b", ("0",))]) == [("0",), ("1",), ("0",)]
    assert divide([("a", ("0", "1", "2", "3"))] * 2) == [("0", "2"), ("1", "3")]
    assert divide([("a", ("0",))] * 2) == [("0",), ("0",)]
    assert divide([("10.0.0.1", ("0", "1")), ("10.0.0.10", ("0", "1"))]) == [("0", "1"), ("0", "1")]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 4)), max_size=6))
def test_no_gpu_is_given_twice_where_there_are_enough(offers):
    nodes = [(host, tuple(map(str, range(count)))) for host, count in offers]
    result = divide(nodes)
    for host in "ab":
        here = [own for own, (each, _) in zip(result, nodes, strict=True) if each == host]
        wanting = [offer for each, offer in nodes if each == host and offer]
        given_out = [gpu for own in here for gpu in own]
        assert all(own for own, (each, offer) in zip(result, nodes, strict=True) if each == host and offer)
        if len({gpu for offer in wanting for gpu in offer}) >= len(wanting):
            assert len(given_out) == len(set(given_out))

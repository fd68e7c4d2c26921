"""Which variables ask for spans, where they go, and what a receiver that is down or a package that is missing does."""

import builtins
import logging
import os
import socket
import time

import pytest

from tensorflowonspark.config import ClusterSpec
from tensorflowonspark.driver.metrics import spans
from tensorflowonspark.driver.metrics.metrics_store import MetricsStore
from tensorflowonspark.driver.nodes import Roster
from tensorflowonspark.messages import Evaluation, ReportedMetrics
from tensorflowonspark.terminal import CONSOLE
from tests.support.commands import run_python
from tests.support.otlp_receiver import receive

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setattr(spans, "_warned", [])
    for name in [each for each in os.environ if each.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    return monkeypatch


def ended(act=lambda store: None, *, failed=False):
    """Run a cluster without nodes; return the seconds that its end took."""
    store = MetricsStore("train")
    spans.follow(store)
    store.begin_attempt("ab12cd34", Roster(ClusterSpec(num_workers=2)).nodes, 0, 0, lambda: None)
    act(store)
    store.events.flush()
    began = time.monotonic()
    store.end(failed=failed, text="worker:0 failed" if failed else "the cluster has ended")
    return time.monotonic() - began


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, []),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318"}, ["otlp_proto_http"]),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://h:4318/v1/traces"}, ["otlp_proto_http"]),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://h:4318"}, []),
        ({"OTEL_TRACES_EXPORTER": "console"}, ["console"]),
        ({"OTEL_TRACES_EXPORTER": "console, otlp"}, ["console", "otlp_proto_http"]),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318"}, []),
        ({"OTEL_TRACES_EXPORTER": "console", "OTEL_SDK_DISABLED": "True"}, []),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, ["otlp_proto_grpc"]),
        (
            {
                "OTEL_TRACES_EXPORTER": "otlp",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
            },
            ["otlp_proto_http"],
        ),
    ],
)
def test_the_variables_that_ask_for_spans(environment, variables, expected):
    for name, value in variables.items():
        environment.setenv(name, value)
    assert spans._exporter_names() == expected


def test_without_variables_nothing_of_opentelemetry_is_imported():
    program = """
import sys
from tensorflowonspark.driver.metrics import spans
from tensorflowonspark.driver.metrics.metrics_store import MetricsStore
spans.follow(MetricsStore())
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""
    run_python(program)


@pytest.mark.parametrize(
    ("variables", "missing", "text"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, "opentelemetry", "No module named 'opentelemetry'"),
        ({"OTEL_TRACES_EXPORTER": "pigeons"}, "", "no installed package has the exporter 'pigeons'"),
    ],
)
def test_a_package_that_is_missing_is_one_warning(environment, caplog, variables, missing, text):
    for name, value in variables.items():
        environment.setenv(name, value)
    find = builtins.__import__

    def find_other(name, *given):
        if missing and name.partition(".")[0] == missing:
            raise ModuleNotFoundError(f"No module named {missing!r}")
        return find(name, *given)

    environment.setattr(builtins, "__import__", find_other)
    with caplog.at_level(logging.WARNING):
        ended()
        ended()
        CONSOLE.drain()  # another thread writes it
    (warning,) = caplog.messages
    assert text in warning
    assert 'pip install "tensorflowonspark[otel]"' in warning


def test_a_failed_run_and_an_evaluation(environment):
    def evaluate(store):
        store.take_evaluation(
            Evaluation("/checkpoints", "c-1", metrics=ReportedMetrics(3, {"loss": 1.0}, ended=True, seconds=2.5))
        )

    with receive() as receiver:
        environment.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{receiver.address}/v1/traces")
        ended(evaluate, failed=True)
    (run,), (attempt,), (evaluation,) = map(receiver.spans, ("run", "attempt", "evaluation"))
    assert [span.status.message for span in (run, attempt)] == ["worker:0 failed"] * 2
    assert receiver.facts("evaluation") == [{"tensorflowonspark.epoch": 3}]
    assert evaluation.parent_span_id == attempt.span_id
    assert evaluation.end_time_unix_nano - evaluation.start_time_unix_nano == pytest.approx(2.5e9, rel=1e-3)


def test_the_span_that_is_active_is_the_parent_and_its_provider_gets_the_spans(environment):
    program = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.unit.driver.test_spans import ended

found = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(found))
trace.set_tracer_provider(provider)
with trace.get_tracer("mine").start_as_current_span("pipeline"):
    ended()
spans = {each.name: each for each in found.get_finished_spans()}
assert set(spans) == {"run", "attempt", "pipeline"}, spans
assert spans["run"].parent.span_id == spans["pipeline"].context.span_id
"""
    environment.setenv("OTEL_TRACES_EXPORTER", "otlp")
    run_python(program)


def test_the_end_does_not_wait_long_for_a_receiver_that_does_not_answer(environment):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        environment.setattr(spans, "_END_SECONDS", 1.0)
        assert ended() < 4.0

"""Spans of OpenTelemetry: a run, its attempts, and what happens in them.

There are none unless the standard variables of the environment name where they go; how they are sampled and sent is a
matter of the SDK, which reads its own variables.
"""

import logging
import os
import time
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from threading import Thread
from typing import Any

from tensorflowonspark.driver.metrics.event_log import MetricsListener
from tensorflowonspark.driver.metrics.metrics_store import MetricsStore
from tensorflowonspark.driver.metrics.phases import Phase
from tensorflowonspark.driver.metrics.records import ClusterEvent, EpochMetrics
from tensorflowonspark.terminal import CONSOLE

_log = logging.getLogger(__name__)
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_NAME = "tensorflowonspark"
_END_SECONDS = 5.0  # for the last spans, at the cluster's end
_warned: list[bool] = []  # whether this process has shown that a package is missing


def follow(store: MetricsStore) -> None:
    """Write the spans of a cluster that is about to start, if the environment asks for them.

    The parent is the span that is active in this thread, or else that of TRACEPARENT. A program that has set a provider
    of its own gets the spans there.
    """
    names = _exporter_names()
    if not names:
        return
    try:
        tracer, context, close = _open(names)
    except Exception as error:  # of a package that is missing, or of a variable's value
        if not _warned:
            _warned.append(True)
            text = (
                "the environment asks for traces of OpenTelemetry, and none are written: %s. Where the driver runs, "
                'pip install "tensorflowonspark[otel]" installs what they need; OTEL_SDK_DISABLED=true asks for none'
            )
            CONSOLE.log(_log, logging.WARNING, text, error)
        return
    store.events.subscribe(RunSpans(store, tracer, context, close))


def _exporter_names() -> list[str]:
    """Return the names under which packages provide the exporters that the environment asks for."""
    given = os.environ.get("OTEL_TRACES_EXPORTER", "").strip()
    disabled = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if disabled or given == "none" or not (given or any(map(os.environ.get, _ENDPOINTS))):
        return []
    protocol = next(filter(None, map(os.environ.get, _PROTOCOLS)), "http/protobuf").strip()
    otlp = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
    return [otlp if name == "otlp" else name for name in map(str.strip, (given or "otlp").split(","))]


def _open(names: list[str]) -> tuple[Any, Any, Callable[[], object]]:
    """Return a tracer, the context of its first span, and what sends all spans at the end."""
    from opentelemetry import context, trace
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    provider: Any = trace.get_tracer_provider()
    close: Callable[[], object] = getattr(provider, "force_flush", lambda: None)
    if not isinstance(provider, TracerProvider):
        resource = Resource.create({"service.name": _NAME}).merge(OTELResourceDetector().detect())
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        close = provider.shutdown
        for name in names:
            found = tuple(entry_points(group="opentelemetry_traces_exporter", name=name))
            if not found:
                raise ImportError(f"no installed package has the exporter {name!r}")
            provider.add_span_processor(BatchSpanProcessor(found[0].load()()))
    parent = context.get_current()
    if not trace.get_current_span(parent).get_span_context().is_valid:
        names_of_w3c = ("traceparent", "tracestate")
        carrier = {name: os.environ[name.upper()] for name in names_of_w3c if name.upper() in os.environ}
        parent = TraceContextTextMapPropagator().extract(carrier, parent)
    return provider.get_tracer(_NAME), parent, close


class RunSpans(MetricsListener):
    """Writes the spans of one cluster."""

    def __init__(self, store: MetricsStore, tracer: Any, context: Any, close: Callable[[], object]) -> None:
        self._store = store
        self._tracer = tracer
        self._context = context
        self._close = close
        self._began = time.time()
        self._run: Any = None
        self._attempt: Any = None
        self._attempt_began = 0.0
        self._failed: dict[str | None, float] = {}  # when a node has, until it or all are started again
        self._restart_began: float | None = None  # of all nodes

    def attempt_began(self, began: float, facts: Mapping[str, int]) -> None:
        """Begin the span of an attempt, and before the first one that of the run."""
        if self._run is None:
            self._run = self._start("run", self._began, {"program": self._store.name})
        self._attempt, self._attempt_began = self._start("attempt", began, facts, self._run), began

    def passed(self, phase: Phase) -> None:
        """Write the span of a phase; one of a cluster that has not started any node has no place."""
        if self._attempt is not None:
            self._add(phase.name.replace("_", " "), phase.began, phase.ended, phase.facts, failure=phase.failure)

    def validated(self, epoch: EpochMetrics) -> None:
        """Write the span of what an evaluator did."""
        self._add("evaluation", epoch.time - (epoch.seconds or 0.0), epoch.time, {"epoch": epoch.epoch})

    def happened(self, event: ClusterEvent) -> None:
        """Write what an event is or ends."""
        facts = {"node": event.node, "host.name": event.host, "cause": event.cause}
        match event.kind:
            case "started":
                self._add("start", self._attempt_began, event.time)
                if self._restart_began is not None:
                    self._add("restart", self._restart_began, event.time, parent=self._run)
            case "notice":
                self._attempt.add_event(event.text, _attributes(facts), _nanoseconds(event.time))
            case "failure":
                self._failed[event.node] = event.time
                self._add("failure", event.time, event.time, facts, failure=event.text)
            case "node_restart":
                self._add("restart", self._failed.pop(event.node, event.time), event.time, facts)
            case "restart":
                self._restart_began = max(self._failed.values(), default=event.time)
                self._end_attempt(event, failed=bool(self._failed))
            case "ended":
                self._end(event)

    def _end(self, event: ClusterEvent) -> None:
        if self._run is None:
            return
        now = self._store.snapshot()
        self._end_attempt(event, failed=now.state == "failed")
        facts = {"restarts": now.restarts, "rows": now.rows, "goodput": now.goodput and now.goodput.share}
        self._run.set_attributes(_attributes(facts))
        self._finish(self._run, event.time, event.text if now.state == "failed" else "")
        sender = Thread(target=self._close, daemon=True, name="spans")  # what receives them may be down
        sender.start()
        sender.join(_END_SECONDS)

    def _end_attempt(self, event: ClusterEvent, *, failed: bool) -> None:
        self._finish(self._attempt, event.time, event.text if failed else "")
        self._failed = {}

    def _add(
        self,
        name: str,
        began: float,
        ended: float,
        facts: Mapping[str, Any] | None = None,
        *,
        parent: Any = None,
        failure: str = "",
    ) -> None:
        """Write a span that is over; its parent is the attempt, unless another one is given."""
        self._finish(self._start(name, began, facts or {}, parent or self._attempt), ended, failure)

    def _start(self, name: str, began: float, facts: Mapping[str, Any], parent: Any = None) -> Any:
        from opentelemetry import trace

        context = self._context if parent is None else trace.set_span_in_context(parent)
        return self._tracer.start_span(name, context, attributes=_attributes(facts), start_time=_nanoseconds(began))

    def _finish(self, span: Any, ended: float, failure: str) -> None:
        from opentelemetry.trace import Status, StatusCode

        if failure:
            span.set_status(Status(StatusCode.ERROR, failure))
        span.end(_nanoseconds(ended))


def _attributes(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that are known, under names that no other package has."""
    known = {name: value for name, value in facts.items() if value is not None}
    return {name if "." in name else f"{_NAME}.{name}": value for name, value in known.items()}


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)

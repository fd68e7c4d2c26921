"""The dashboard of Grafana and the rules of Prometheus in deploy/ use metrics and labels that a cluster has."""

import json
import re

import pytest
import yaml

from tensorflowonspark.driver.dashboard import prometheus
from tensorflowonspark.driver.metrics.measures import MEASURES
from tests.support.paths import ROOT

_PLACE = ROOT / "deploy/grafana"
_OF_CLUSTER = {*prometheus._CLUSTER_METRICS, "cluster_events_total", "cluster_info"}
_LABELS = {
    **{name: {"job", "instance"} for name in _OF_CLUSTER},
    **{name: {"job", "instance", "node", "host"} for name in filter(None, (each.exported for each in MEASURES))},
    **{name: {"job", "instance", "node", "host", "gpu"} for name in prometheus._GPU_METRICS},
    "cluster_lost_ratio": {"job", "instance", "cause"},
    "metric": {"job", "instance", "metric"},
}


def queries():
    """Return each query, and the labels that its text shows."""
    board = json.loads((_PLACE / "dashboard.json").read_text())
    for panel in board["panels"]:
        for target in panel["targets"]:
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            yield pytest.param(target["expr"], shown, id=panel["title"])
    (group,) = yaml.safe_load((_PLACE / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]:
        shown = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
        yield pytest.param(rule["expr"], shown, id=rule["alert"])


@pytest.mark.parametrize(("query", "shown"), list(queries()))
def test_metrics_and_labels_exist(query, shown):
    names = re.findall(r"tensorflowonspark_(\w+)", query)
    assert names
    for name in names:
        assert shown <= _LABELS[name], name
    if " by " in query:
        assert shown <= set(re.findall(r"by \((\w+)\)", query))
    assert query.count("(") == query.count(")")
    assert query.count("{") == query.count("}")

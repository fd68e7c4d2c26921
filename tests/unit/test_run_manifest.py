"""Manifests: what of the settings they have, how two of them differ, and what can't be read."""

import json
import math
from typing import Annotated

import pytest

from tensorflowonspark.driver.feed.feed_settings import FeedSettings
from tensorflowonspark.restart_policy import RestartPolicy
from tensorflowonspark.run_manifest import FORMAT, differences, flat, given_settings, later_version, parse_manifest
from tensorflowonspark.settings import ClusterSettings, Dashboard, Logs, Network, Nodes

SECRET = "hunter2"
URL = f"s3://key:{SECRET}@bucket/logs?token={SECRET}"


@pytest.mark.parametrize(
    ("groups", "shown", "hidden"),
    [
        ((ClusterSettings(), Logs(), Dashboard(), Network(), Nodes()), {}, []),
        ((ClusterSettings(num_workers=(2, 8), evaluator=True),), {"num_workers": (2, 8), "evaluator": True}, []),
        ((ClusterSettings(env={"API_TOKEN": SECRET}, tensorboard=URL),), {}, ["env", "tensorboard"]),
        ((Logs(log_dir=URL, log_format="json"), Nodes(notice=f"http://h/{SECRET}")), {"log_format": "json"}, None),
        ((Dashboard(page_port=8080, report=URL, tracking="none"),), {"page_port": 8080, "tracking": "none"}, None),
        ((RestartPolicy(5, causes=[SECRET] and ["raised"], scope="node"),), {"max_restarts": 5, "scope": "node"}, None),
        ((Nodes(grow_after=math.inf, gpus_per_node=2),), {"grow_after": "inf", "gpus_per_node": 2}, []),
        ((FeedSettings(cache=None, validation=SECRET),), {"cache": None}, ["validation"]),
        ((FeedSettings(cache="memory", cache_limit="2g"),), {"cache": "memory"}, ["cache_limit"]),
        ((FeedSettings(cache_limit=1000),), {"cache_limit": 1000}, []),
    ],
)
def test_settings_are_recorded_by_their_declared_kind(groups, shown, hidden):
    found = given_settings(*groups)
    assert found["settings"] == shown
    assert hidden is None or found["not_recorded"] == hidden
    assert SECRET not in json.dumps(found, allow_nan=False)


def test_a_setting_that_is_added_later_is_a_secret_until_its_kind_says_otherwise():
    """An innocent name of a text does not show it, and a name as of a secret does not hide a number."""
    from dataclasses import dataclass

    @dataclass
    class Later:
        plain: Annotated[str, "a unit"] = ""
        tokens_per_second: int = 0

    assert given_settings(Later(SECRET, 5)) == {"settings": {"tokens_per_second": 5}, "not_recorded": ["plain"]}


def manifest(**parts):
    return {"format": FORMAT, **parts}


def of_feed(name="0", **columns):
    return manifest(data={name: {"source": "spark", "columns": columns}})


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (manifest(), manifest(versions={"keras": "3.15.1"}, backend="jax", program={"sha256": "1"}), []),
        (manifest(versions={"jax": "0.10"}), manifest(versions={"keras": "3.15.1"}), []),
        (manifest(versions={"keras": "3.14"}), manifest(versions={"keras": "3.15"}), ["keras is 3.15, was 3.14"]),
        (manifest(backend="tensorflow"), manifest(backend="jax"), ["backend is jax, was tensorflow"]),
        (
            manifest(program={"sha256": "1", "file": "/a/train.py", "revision": "1a"}),
            manifest(program={"sha256": "2", "file": "/b/train.py", "revision": "1a-dirty"}),
            ["the program's file /b/train.py has changed", "program.revision is 1a-dirty, was 1a"],
        ),
        (manifest(program={"sha256": "1", "file": "/a"}), manifest(program={"sha256": "1", "file": "/b"}), []),
        (manifest(program={"sha256": "1"}), manifest(program={"sha256": None}), []),
        (manifest(restarts=0, written="x", workers=2), manifest(restarts=1, written="y", workers=3), []),
        (of_feed(x="float"), of_feed(x="double"), ["column 'x' is double, was float"]),
        (
            of_feed(x="float"),
            of_feed(y="float"),
            ["column 'y' is float, was not there", "column 'x' is gone, was float"],
        ),
        (of_feed("0", x="float"), of_feed("1", x="double"), []),
        (of_feed(), of_feed(x="double"), []),
        (manifest(versions=["later"], data=[1]), manifest(versions={"keras": "3"}, data={"0": {"columns": {}}}), []),
    ],
)
def test_differences_are_those_of_program_versions_and_columns(before, now, expected):
    text = json.dumps(before).encode()
    assert list(differences(parse_manifest(text), now)) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "neither JSON nor a report"),
        (b'{"format": 1', "neither JSON nor a report"),
        (b"\xff\xfe", "neither JSON nor a report"),
        (b"[" * 100_000, "neither JSON nor a report"),
        (b"[]", "none in this JSON"),
        (b"3", "none in this JSON"),
        (b'{"workers": 2}', "none in this JSON"),
        (b'{"format": "1"}', "none in this JSON"),
        (b'{"format": true}', "none in this JSON"),
        (b'<script id="data" type="application/json">{"summary": 1}</script>', "none in this report"),
        (b'<script id="data" type="application/json">[]</script>', "none in this report"),
        (b'<script id="data" type="application/json">null</script>', "none in this report"),
        (b'<script id="data">{</script>', "neither JSON nor a report"),
        (b"<html></html>", "neither JSON nor a report"),
    ],
)
def test_what_is_no_manifest_has_a_reason(text, reason):
    with pytest.raises(ValueError, match=reason):
        parse_manifest(text)


def test_one_of_a_later_version_is_read_as_far_as_known():
    later = {"format": FORMAT + 1, "versions": {"keras": "4"}, "program": "otherwise", "carbon": {"grams": [1, 2]}}
    found = parse_manifest(json.dumps(later).encode())
    assert f"format {FORMAT + 1}, and {FORMAT} is known here" in later_version(found)
    assert flat(found) == {"format": str(FORMAT + 1), "versions.keras": "4", "carbon.grams": "1, 2"}
    assert later_version(manifest()) == ""

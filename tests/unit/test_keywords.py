"""Keywords that are declared once: in signatures, help, the options of ``tfos run``, and for type checkers."""

import importlib.util
import inspect
import operator
import pydoc
import subprocess
import sys

import pytest

import tensorflowonspark as tfos
from tensorflowonspark import cli, frames
from tensorflowonspark.declarations import entries_of, keywords_of
from tensorflowonspark.driver.feed.feed_settings import FeedSettings
from tensorflowonspark.frames.block_plans import MapOptions, ReduceOptions
from tensorflowonspark.node.feed.selection import DatasetOptions, FeatureOptions
from tensorflowonspark.settings import ClusterSettings
from tensorflowonspark.tfrecords.options import ReadOptions
from tests.support.backend import cluster_on
from tests.support.paths import ROOT
from tests.support.scripted import ScriptedBackend
from tools import settings_table

_SPEC = importlib.util.spec_from_file_location("keywords", ROOT / "tools" / "keywords.py")
keywords = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(keywords)

TAKERS = [
    *[(tfos.Cluster, ClusterSettings), (tfos.run, ClusterSettings), (tfos.run_script, tfos.run)],
    (tfos.Cluster.train, FeedSettings),
    *[(each, DatasetOptions) for each in (tfos.Context.dataset, tfos.Context.batches)],
    *[(each, DatasetOptions) for each in (tfos.Feed.dataset, tfos.Feed.batches)],
    *[(each.validation_dataset, FeatureOptions) for each in (tfos.Context, tfos.Feed)],
    *[(each.validation_batches, FeatureOptions) for each in (tfos.Context, tfos.Feed)],
    (tfos.CoordinatedFeed.per_worker, FeatureOptions),
    *[(each, ReadOptions) for each in (tfos.read_tfrecord, tfos.Context.read_tfrecord)],
    *[(each, MapOptions) for each in (frames.map_blocks, frames.map_rows)],
    *[(each, ReduceOptions) for each in (frames.reduce_blocks, frames.reduce_rows, frames.aggregate)],
]
PROGRAM = """
import tensorflowonspark as tfos
from pyspark.sql import SparkSession

def program(spark: SparkSession) -> None:
    tfos.Cluster(spark, print, num_workers=(2, 8), nodes=tfos.Nodes(hold=True), logs=tfos.Logs(log_format="json"))
    tfos.run(spark, print, restarts=tfos.RestartPolicy(3), data=tfos.Data(spark.range(3), cache=None), env={"A": "1"})
    tfos.run_script(spark, "train.py", num_ps=1, dashboard=8080, network=tfos.Network(tls=True), logs="logs")

def node(ctx: tfos.Context, feed: tfos.CoordinatedFeed) -> None:
    ctx.dataset(64, features=["a", "b"], label="c", shapes={"a": (28, 28)}, seed=3, on_epoch_end=print)
    ctx.validation_dataset(64, fill={"a": 0})
    rows: int | None = ctx.feed().rows
    found: tfos.Feed = ctx.read_parquet("rows", cache=None)
    found.validation_batches(64, features="a")
    feed.per_worker(64, epochs=None, shuffle=False, dtypes={"a": "float32"})
"""
MISTAKES = """
import tensorflowonspark as tfos
from pyspark.sql import SparkSession

def program(spark: SparkSession) -> None:
    tfos.Cluster(spark, print, worker=2)
    tfos.Cluster(spark, print, num_ps="one")
    tfos.run(spark, print, hold=True)
    tfos.run(spark, print, logs=tfos.Logs(log_format="xml"))
    tfos.run_script(spark, "train.py", dashboard=tfos.Dashboard(tracking=True))

def node(ctx: tfos.Context) -> None:
    ctx.dataset(64, feature="a")
    ctx.batches(64, shapes=(28, 28))
    ctx.validation_dataset(64, seed=3)
"""


def test_the_stub_is_that_of_the_declarations():
    assert keywords.STUB.read_text() == keywords.stub(), "run `make keywords`"


@pytest.mark.parametrize(("taker", "declared"), TAKERS)
def test_signature_and_help_show_each_keyword(taker, declared):
    shown, text = inspect.signature(taker).parameters, pydoc.plain(pydoc.render_doc(taker))
    text = "\n".join(line.strip(" |") for line in text.splitlines())
    entries = entries_of(declared)
    for name, each in keywords_of(declared).items():
        assert shown[name].default == each.default
        assert "Annotated" not in str(shown[name])
        assert "\n".join(line.strip() for line in entries[name].splitlines()) in text


@pytest.mark.parametrize(
    ("taker", "name"), [(tfos.Cluster, "Cluster.__init__"), (tfos.run, "run"), (tfos.Feed.dataset, "Feed.dataset")]
)
def test_an_unknown_keyword_is_an_error_as_of_any_function(taker, name):
    with pytest.raises(TypeError, match=rf"^{name}\(\) got an unexpected keyword argument 'workers'"):
        taker(None, print, workers=2)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: tfos.run(None, print, nun_workers=2), r"'nun_workers' \(did you mean 'num_workers'\?\)"),
        (lambda: tfos.run(None, print, num_proc=2), r"'num_proc' \(here it is 'num_workers'\)$"),
        (lambda: tfos.run(None, print, use_gpu=True), r"'use_gpu' \(here it is nodes=tfos.Nodes\(gpus_per_node=1\)\)$"),
        (lambda: tfos.run(None, print, max_failures=3), r"'max_failures' \(here it is 'restarts'\)$"),
        (lambda: tfos.run(None, print, resources_per_worker={}), "'resources_per_worker' .here it is Spark's spark.ta"),
        (lambda: tfos.run(None, print, scaling_config=4), "'scaling_config' .here it is num_workers=4, and nodes="),
        (lambda: tfos.run(None, print, checkpoint="c"), "'checkpoint' .here it is ctx.checkpoint.path. in the program"),
        (lambda: tfos.run(None, print, datasets={}), r"'datasets' \(here it is 'data'\)$"),
        (lambda: tfos.Nodes(hearbeat_timeout=60), r"Nodes has no setting 'hearbeat_timeout' \(did you mean 'heartbe"),
        (lambda: tfos.Network(log_dir="l"), "Network has no setting 'log_dir': it has network_interface, ports, tls"),
        (lambda: tfos.Data(None, chache="disk"), r"Data has no setting 'chache' \(did you mean 'cache'\?\)"),
    ],
)
def test_a_slip_of_the_pen_has_the_name_that_was_meant(call, words):
    with pytest.raises(TypeError, match=words):
        call()


def test_the_table_of_settings_is_that_of_the_declarations():
    text = settings_table.PAGE.read_text()
    assert settings_table.page(text) == text, "run `make keywords`"


def test_each_setting_has_one_default_at_all_entrances():
    parser = cli._parser([])._subparsers._group_actions[0].choices["run"]
    options = {action.dest: action for action in parser._actions}
    params = tfos.ml.KerasEstimator().extractParamMap()
    params = {param.name: value for param, value in params.items()}
    for name, group, declared in settings_table.settings():
        default = {"max_restarts": 0, "env": []}.get(name, declared.default)  # `restarts=0` is the short form
        if settings_table.entrances(name, group)[3] != "none":
            assert options[name].default == default, name
            assert options[name].help
        if group == "data":
            assert keywords_of(tfos.Cluster.train)[name].default == default
        param = settings_table.entrances(name, group)[2]
        if param not in ("clusterOptions", "none", "env") and (group != "restarts" or name == "max_restarts"):
            assert params.get(param) == default, name


def test_a_call_has_at_most_fifteen_parameters():
    calls = {"Cluster": 14, "run": 15, "Cluster.train": 12, "tune": 15}
    found = {name: operator.attrgetter(name)(tfos) for name in calls}
    assert {name: len(inspect.signature(each).parameters) for name, each in found.items()} == calls


OLD = [
    ({"log_dir": "l", "show": "all"}, {"logs": tfos.Logs(log_dir="l", show="all")}),
    ({"dashboard": True, "metrics_port": 0}, {"dashboard": tfos.Dashboard(page_port=0, metrics_port=0)}),
    ({"report": "run.html"}, {"dashboard": tfos.Dashboard(report="run.html")}),
    ({"tls": True, "ports": "7000-7100"}, {"network": tfos.Network(tls=True, ports="7000-7100")}),
    ({"hold": True, "grace": 0.0}, {"nodes": tfos.Nodes(hold=True, grace=0.0)}),
    ({"logs": "l", "log_format": "json"}, {"logs": tfos.Logs(log_dir="l", log_format="json")}),
]


@pytest.mark.parametrize(("former", "now"), OLD)
def test_a_setting_by_itself_works_with_a_warning_that_names_its_object(tmp_path, monkeypatch, former, now):
    monkeypatch.chdir(tmp_path)  # where directories of logs are made
    with pytest.warns(
        DeprecationWarning, match=r"is the old name.* write \w+=(Logs|Dashboard|Network|Nodes)\("
    ) as given:
        cluster = cluster_on(ScriptedBackend(), **former)
    assert cluster._config == cluster_on(ScriptedBackend(), **now)._config
    assert {each.filename for each in given} == {cluster_on.__code__.co_filename}  # the line of the program


@pytest.mark.parametrize(
    ("former", "now", "words"),
    [
        (
            {"timeout": 3.0},
            {"feed_timeout": 3.0},
            r"train\(timeout=...\) is the old name, .*: write train\(feed_timeout=...\)",
        ),
        (
            {"shuffle": "global"},
            {"global_shuffle": True},
            r"train\(shuffle=...\) .*: write train\(global_shuffle=...\)",
        ),
        ({"shuffle": None}, {"global_shuffle": False}, r"train\(shuffle=...\) .*: write train\(global_shuffle=...\)"),
    ],
)
def test_former_names_of_a_feed(monkeypatch, former, now, words):
    cluster, fed = cluster_on(ScriptedBackend()), []
    monkeypatch.setattr(cluster, "_request", lambda data, settings: fed.append(settings))
    monkeypatch.setattr(cluster, "_feed", lambda request: None)
    with pytest.warns(DeprecationWarning, match=words):
        cluster.train("rows", **former)
    assert fed == [FeedSettings(**now)]
    with pytest.raises(tfos.SpecError, match="are the same: give one of them"):
        cluster.train("rows", **former, **now)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"logs": 5}, r"logs=5: expected a directory, or Logs\(log_dir=, log_level=, log_format=, show=\)"),
        ({"logs": tfos.Network()}, "expected a directory"),
        ({"dashboard": "8080"}, "dashboard='8080': expected True, False, a port, or Dashboard"),
        ({"dashboard": 70000}, "dashboard=70000: expected None or a port from 0"),
        ({"network": "ib0"}, r"network='ib0': expected Network\(network_interface="),
        ({"nodes": {"tls": True}}, r"expected Nodes\(gpus_per_node="),
        ({"chief": 1}, "chief=1: expected True or False"),
        ({"logs": tfos.Logs(show="all"), "log_dir": "l"}, r"log_dir='l' is given beside logs=Logs\(\.\.\.\)"),
    ],
)
def test_settings_that_can_not_be(given, words):
    with pytest.raises(tfos.SpecError, match=words):
        cluster_on(ScriptedBackend(), **given)


def test_options_by_type_and_unit():
    words = ["--no-warm-nodes", "--tls", "--ps-on-driver", "--validation", "test", "--start", "first_rows"]
    words += ["--start-timeout", "2m", "--gpus-per-node", "2", "--log-level", "10", "--workers", "2:8"]
    words += ["--restarts", "3", "--restart-scope", "node", "--restart-causes", "lost,died", "--restart-backoff", "5s"]
    words += ["--cache", "none", "--files", "a,b", "--files", "c", "train.py"]
    options = cli._parser([]).parse_args(["run", *words])
    differing = {
        name: getattr(options, name)
        for name, _, declared in settings_table.settings()
        if name in options and getattr(options, name) != declared.default
    }
    assert differing == {
        "warm_nodes": False,
        "tls": True,
        "ps_on_driver": True,
        "validation": "test",
        "start": "first_rows",
        "start_timeout": 120.0,
        "gpus_per_node": 2,
        "log_level": "10",
        "num_workers": (2, 8),
        "env": [],
        "scope": "node",
        "causes": ("lost", "died"),
        "backoff": 5.0,
        "cache": None,
    }
    assert options.files == ["a", "b", "c"]


@pytest.mark.slow
def test_type_checkers_see_the_keywords(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "mistakes.py").write_text(MISTAKES)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "program.py", "mistakes.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100)
    lines = [line for line in ended.stdout.splitlines() if ": error: " in line]
    assert [line.split(":")[:2] for line in lines] == [
        ["mistakes.py", str(number)] for number in [*range(6, 11), *range(13, 16)]
    ]

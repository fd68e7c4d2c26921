"""Keywords that are declared once: in signatures, help, the options of ``tfos run``, and for type checkers."""

import importlib.util
import inspect
import pydoc
import subprocess
import sys

import pytest

import tensorflowonspark as tfos
from tensorflowonspark import cli
from tensorflowonspark.config import ClusterSettings
from tensorflowonspark.declarations import entries_of, keywords_of
from tensorflowonspark.node.feed.selection import DatasetOptions, FeatureOptions
from tensorflowonspark.tfrecords.options import ReadOptions
from tests.support.paths import ROOT

_SPEC = importlib.util.spec_from_file_location("keywords", ROOT / "tools" / "keywords.py")
keywords = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(keywords)

TAKERS = [
    *[(tfos.Cluster, ClusterSettings), (tfos.run, ClusterSettings), (tfos.run_script, tfos.run)],
    *[(each, DatasetOptions) for each in (tfos.Context.dataset, tfos.Context.batches)],
    *[(each, DatasetOptions) for each in (tfos.Feed.dataset, tfos.Feed.batches)],
    *[(each.validation_dataset, FeatureOptions) for each in (tfos.Context, tfos.Feed)],
    *[(each.validation_batches, FeatureOptions) for each in (tfos.Context, tfos.Feed)],
    (tfos.CoordinatedFeed.per_worker, FeatureOptions),
    *[(each, ReadOptions) for each in (tfos.read_tfrecord, tfos.Context.read_tfrecord)],
]
PROGRAM = """
import tensorflowonspark as tfos
from pyspark.sql import SparkSession

def program(spark: SparkSession) -> None:
    tfos.Cluster(spark, print, num_workers=(2, 8), hold=True, log_format="json", tls=None)
    tfos.run(spark, print, restarts=tfos.RestartPolicy(3), start="first_rows", env={"A": "1"})
    tfos.run_script(spark, "train.py", num_ps=1, report="run.html", warm_nodes=False)

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
    tfos.run(spark, print, log_format="xml")
    tfos.run_script(spark, "train.py", tracking=True)

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
    with pytest.raises(TypeError, match=rf"^{name}\(\) got an unexpected keyword argument 'workers'$"):
        taker(None, print, workers=2)


def test_tfos_run_has_an_option_for_each_keyword_of_run():
    parser = cli._parser([])._subparsers._group_actions[0].choices["run"]
    options = {action.dest: action for action in parser._actions}
    assert set(keywords_of(tfos.run)) <= set(options)
    assert all(options[name].help for name in keywords_of(tfos.run))


def test_options_by_type_and_unit():
    words = ["--no-warm-nodes", "--tls", "--ps-on-driver", "--validation", "test", "--start", "first_rows"]
    words += ["--start-timeout", "2m", "--gpus-per-node", "2", "--log-level", "10", "--workers", "2:8", "train.py"]
    options = cli._parser([]).parse_args(["run", *words])
    found = {name: getattr(options, name) for name in keywords_of(tfos.run)}
    differing = {name: each for name, each in found.items() if each != keywords_of(tfos.run)[name].default}
    flags = {"warm_nodes": False, "tls": True, "ps_on_driver": True}
    values = {"validation": "test", "start": "first_rows", "start_timeout": 120.0, "gpus_per_node": 2}
    assert differing == flags | values | {"log_level": "10", "num_workers": (2, 8), "grace": 30.0, "env": []}


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

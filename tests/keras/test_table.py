"""What Keras and tf.data offer, under each strategy, compared with one process: the page docs/keras.md."""

import inspect
import os
import re
from pathlib import Path

import cloudpickle
import keras
import pytest
import tensorflow as tf
from pyspark import cloudpickle as spark_cloudpickle
from table import cells, judging, page, running
from table.columns import COLUMNS, MIRRORED, MULTI_WORKER, NONE, PARAMETER_SERVER

PAGE = Path(__file__).parent.parent.parent / "docs" / "keras.md"
WANTED = os.environ.get("TFOS_TEST_TABLE", ",".join(COLUMNS)).split(",")
BASES = {"Optimizer", "OptimizerMap", "LearningRateSchedule", "Loss", "Metric", "Callback"}
NOT_A_TRANSFORMATION = {
    "counter",
    "element_spec",
    "fingerprint",
    "from_tensors",
    "list_files",
    "options",
    "random",
    "range",
}

pytestmark = [pytest.mark.masters("local"), pytest.mark.slow, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def verdicts(spark, tmp_path_factory):
    """Run all cells in the columns that are wanted; return how each is judged."""
    cells.load()
    for pickler in (cloudpickle, spark_cloudpickle):
        pickler.register_pickle_by_value(running)
    directory = tmp_path_factory.mktemp("table")
    reference = running.start_reference(directory)
    in_one_node = {name: running.keys_of(name) for name in (NONE, MIRRORED) if name in WANTED}
    stalled = running.run_one_node(spark, directory, in_one_node) if in_one_node else {}
    for name, run in ((MULTI_WORKER, running.run_multi_worker), (PARAMETER_SERVER, running.run_parameter_server)):
        if name in WANTED:
            stalled |= {(name, key): text for key, text in run(spark, directory, running.keys_of(name)).items()}
    _, errors = reference.communicate()
    assert not reference.returncode, errors
    return {
        (key, column): judging.judge(
            cell,
            column,
            running.reference(directory, key),
            running.outcomes(directory, column, key),
            stalled.get((column, key), ""),
        )
        for key, cell in cells.ALL.items()
        for column in WANTED
    }


def test_no_cell_is_wrong(verdicts):
    wrong = [f"{key} | {column}: {each.why}" for (key, column), each in verdicts.items() if each.kind == judging.WRONG]
    assert not wrong, "\n".join(wrong)


def test_the_page_is_what_the_cells_have_come_to(verdicts, request):
    """`make keras-table` writes it; without that it must be what stands there."""
    not_run = {(key, column): judging.Verdict(judging.NOT_RUN) for key in cells.ALL for column in COLUMNS}
    text = page.page({**not_run, **verdicts}, {"Keras": keras.__version__, "TensorFlow": tf.__version__})
    if request.config.getoption("--write-keras-table"):
        assert set(WANTED) == set(COLUMNS)
        PAGE.write_text(text)
    there, found = page.marks(PAGE.read_text()), page.marks(text)
    assert {at: there.get(at) for at in found if at[2] in WANTED} == {at: found[at] for at in found if at[2] in WANTED}
    assert set(there) == set(found)


@pytest.mark.parametrize(
    ("module", "groups"),
    [
        (keras.optimizers, ["Optimizers"]),
        (keras.optimizers.schedules, ["Schedules"]),
        (keras.losses, ["Losses"]),
        (keras.metrics, ["Metrics"]),
        (keras.callbacks, ["Callbacks"]),
    ],
    ids=["optimizers", "schedules", "losses", "metrics", "callbacks"],
)
def test_all_classes_of_keras_are_there(module, groups):
    cells.load()
    names = " ".join(each.name for each in cells.ALL.values() if each.group in groups)
    public = {name for name in dir(module) if inspect.isclass(getattr(module, name))} - BASES
    assert not [name for name in sorted(public) if not re.search(rf"\b{name}\b", names)]


def test_all_transformations_of_datasets_are_there():
    cells.load()
    names = " ".join(each.name for each in cells.ALL.values() if each.group == "tf.data")
    public = {name for name in dir(tf.data.Dataset) if not name.startswith("_")} - NOT_A_TRANSFORMATION
    assert not [name for name in sorted(public) if not re.search(rf"\b{name}\b", names)]

"""Completeness of the table of Keras and tf.data."""

import inspect
import re

import keras
import pytest
import tensorflow as tf

from tests.support.keras_table import cells, judging, page
from tests.support.keras_table.columns import COLUMNS
from tests.support.paths import DOCS

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


@pytest.mark.parametrize(
    ("because", "expected"), [("", "ValueError: no such thing"), ("it is too new", "it is too new")]
)
def test_a_refusal_has_its_reason_in_plain_words(because, expected):
    """Without the colours of a terminal, and in words of ours where the error's own do not say why."""
    (column, *_) = cells.COLUMNS
    refused = cells.Cell("Models", "one", None, refused={column: "no such"}, because=because)
    errors = [("error", "ValueError: \x1b[1mno such thing\x1b[0m\nmore", "")]
    verdict = judging.judge(refused, column, None, errors)
    assert (verdict.kind, verdict.why) == (judging.REFUSED, expected)


def test_the_page_shows_each_cell_in_each_of_its_columns():
    cells.load()
    there = page.shown((DOCS / "keras.md").read_text())
    assert set(there) == {(key, column) for key in cells.ALL for column in COLUMNS}
    assert page.shown(page.page(there, {"Keras": "3.15.1"})) == there  # of which single columns are written anew

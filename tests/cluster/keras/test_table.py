"""What Keras and tf.data offer, under each strategy, compared with one process: the page docs/keras.md."""

import os
from collections import Counter
from importlib.metadata import version

import keras
import pytest
import tensorflow as tf

from tests.support.keras_table import cells, judging, page, running
from tests.support.keras_table.columns import COLUMNS, JAX, MULTI_WORKER, NONE, PARAMETER_SERVER
from tests.support.paths import DOCS

PAGE = DOCS / "keras.md"
WANTED = os.environ.get("TFOS_TEST_TABLE", ",".join(COLUMNS)).split(",")
SHARE = int(os.environ.get("TFOS_TEST_TABLE_SHARE", "1"))  # of how many cells one is run

pytestmark = [pytest.mark.masters("local"), pytest.mark.slow, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def verdicts(spark, tmp_path_factory):
    """Run cells in the columns that are wanted; return how each is judged."""
    cells.load()
    directory = tmp_path_factory.mktemp("table")
    references = []
    if set(WANTED) - {JAX}:
        references.append(running.start_reference(directory, running.chosen(SHARE)))
    if JAX in WANTED:
        references.append(running.start_reference(directory, running.keys_of(JAX, SHARE), backend="jax"))
    stalled = {}
    for name, run in (
        (NONE, running.run_one_node),
        (MULTI_WORKER, running.run_multi_worker),
        (PARAMETER_SERVER, running.run_parameter_server),
    ):
        if name in WANTED:
            stalled |= {(name, key): text for key, text in run(spark, directory, running.keys_of(name, SHARE)).items()}
    if JAX in WANTED:
        keys = running.keys_of(JAX, SHARE)
        stalled |= {(JAX, key): text for key, text in running.run_multi_worker(spark, directory, keys, JAX).items()}
    for reference in references:
        _, errors = reference.communicate()
        assert not reference.returncode, errors
    return {
        (key, column): judging.judge(
            cells.ALL[key],
            column,
            running.reference(directory, column, key),
            running.outcomes(directory, column, key),
            stalled.get((column, key), ""),
        )
        for key in running.chosen(SHARE)
        for column in WANTED
    }


def test_no_cell_is_wrong(verdicts, record_property):
    kinds = Counter(each.kind for each in verdicts.values())
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    record_property("cells", f"{len(verdicts)} cells: {counts}")
    wrong = [f"{key} | {column}: {each.why}" for (key, column), each in verdicts.items() if each.kind == judging.WRONG]
    print(f"{len(verdicts)} cells: {counts}")
    assert not wrong, "\n".join(wrong)


def test_the_page_is_what_the_cells_have_come_to(verdicts, request):
    """`make keras-table` writes it, or some of its columns; without that it must be what stands there."""
    there = page.shown(PAGE.read_text())
    places = [(key, column) for key in cells.ALL for column in COLUMNS]
    known = {place: there.get(place, judging.Verdict(judging.NOT_RUN)) for place in places}
    versions = {"Keras": keras.__version__, "TensorFlow": tf.__version__, "JAX": version("jax")}
    if request.config.getoption("--write-keras-table"):
        assert SHARE == 1
        PAGE.write_text(page.page({**known, **verdicts}, versions))
        there = page.shown(PAGE.read_text())
    assert {place: there[place].kind for place in verdicts} == {place: each.kind for place, each in verdicts.items()}
    assert set(there) == set(places)

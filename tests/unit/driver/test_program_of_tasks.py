"""What Spark's tasks alone can use is refused where a program is made, and named where a node finds it."""

import pyspark
import pytest

from tensorflowonspark.driver.program import serialize_program
from tensorflowonspark.errors import SpecError
from tensorflowonspark.node.main import _advice


def of_kind(kind):
    """Return an object of a class of Spark, without an application."""
    made = kind.__new__(kind)
    vars(made).update(_jbroadcast=None, _path=None, aid=0, accum_param=None, _value=0)
    return made


@pytest.mark.parametrize("place", ["captured", "in args"])
@pytest.mark.parametrize(
    ("kind", "advice"),
    [(pyspark.Broadcast, "hold a broadcast variable.*args=variable.value"), (pyspark.Accumulator, "ctx.report")],
)
def test_variables_of_tasks_are_refused(kind, advice, place):
    variable = of_kind(kind)
    function, args = (lambda _args: variable, {}) if place == "captured" else (lambda _args: 0, {"deep": [variable]})
    with pytest.raises(SpecError, match=advice):
        serialize_program(lambda args, ctx: function(args), args)


def test_files_of_tasks_are_named(monkeypatch):
    monkeypatch.setattr(pyspark.SparkFiles, "_sc", None)  # as in a node, beside the sessions of other tests
    with pytest.raises(AssertionError) as caught:
        pyspark.SparkFiles.get("a.txt")
    assert "works in the driver and in Spark's tasks, and a node is neither" in _advice(caught.value)
    assert "files with run_script(files=...)" in _advice(caught.value)
    with pytest.raises(AssertionError) as caught:
        assert of_kind is None
    assert _advice(caught.value) == ""

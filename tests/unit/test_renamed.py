"""Names of earlier release candidates: they work, with a warning that has the new name, at the user's line."""

import re
import warnings

import pytest

import tensorflowonspark as tfos
from tensorflowonspark import frames
from tensorflowonspark.node.file_access import FileAccess
from tensorflowonspark.node.output_access import OutputAccess
from tensorflowonspark.renamed import takes_old_keywords


def refused(function, *args, **given):
    """Return why a function refuses what it was given."""
    with pytest.raises(tfos.SpecError) as found:
        function(*args, **given)
    return str(found.value).partition(":")[0]


@takes_old_keywords(df="data", recordType="record_type")
def write(data, path=".", *, record_type=None):
    return data, path, record_type


USES = {
    "an error": (lambda: tfos.EnvironmentNotReady, tfos.RequirementError, "tensorflowonspark.RequirementError"),
    "a method": (lambda: OutputAccess().log_directory("/logs"), "/logs", "ctx.tensorboard_directory"),
    "a keyword": (lambda: write(df=1), (1, ".", None), "write(data=...)"),
    "a keyword of two": (lambda: write(path="a", df=1), (1, "a", None), "write(data=...)"),
    "a keyword by name": (lambda: write(1, recordType="E"), (1, ".", "E"), "write(record_type=...)"),
    "adapt": (lambda: refused(tfos.adapt, 1, df=2), "adapt(1)", "adapt(data=...)"),
    "analyze": (lambda: refused(frames.analyze, frame=2), "the data", "analyze(data=...)"),
    "map_rows": (lambda: refused(frames.map_rows, len, frame=2), "the data", "map_rows(data=...)"),
    "write_tfrecord": (lambda: refused(tfos.write_tfrecord, df=2, path="."), "data", "write_tfrecord(data=...)"),
    "read_tfrecord in a node": (
        lambda: refused(FileAccess.read_tfrecord, FileAccess, "none", schema=1, recordType="ByteArray"),
        "schema=1",
        "read_tfrecord(record_type=...)",
    ),
}


@pytest.mark.parametrize("use", USES)
def test_an_old_name_works_and_warns(use):
    act, expected, new = USES[use]
    with pytest.warns(DeprecationWarning, match=re.escape(f"which 3.1 will not have: write {new}")) as found:
        assert act() == expected
    assert [each.filename for each in found] == [__file__]


def test_an_error_is_caught_by_its_old_name():
    def catch():
        try:
            raise tfos.RequirementError("no Java")
        except tfos.EnvironmentNotReady as error:
            return str(error)

    with pytest.warns(DeprecationWarning, match="RequirementError"):
        assert catch() == "no Java"
    with pytest.warns(DeprecationWarning, match="RequirementError"):
        from tensorflowonspark import EnvironmentNotReady
    assert EnvironmentNotReady is tfos.RequirementError


def test_a_new_name_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert write(data=1, record_type="E") == (1, ".", "E")


@pytest.mark.parametrize("given", [{"data": 1, "df": 2}, {"df": 2, "data": 1}])
def test_a_setting_that_is_given_twice_is_refused(given):
    with pytest.raises(
        tfos.SpecError, match=r"write\(df=\.\.\.\) and write\(data=\.\.\.\) are the same: give one of them"
    ):
        write(**given)
    with pytest.raises(TypeError, match="'dff'"):
        write(dff=1)

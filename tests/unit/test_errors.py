import pickle

import pytest

from tensorflowonspark import errors


@pytest.mark.parametrize(
    "error",
    [
        errors.NodeError("worker:1", "h7", "its program raised ValueError: x", "do that", "Traceback ...", "tail"),
        errors.SlotsError(4, 2, "ask for more"),
        errors.StartError("missing"),
        errors.FeedError("column"),
        errors.FeedError("a null", skippable=True),
        errors.SpecError("num_workers=0"),
        errors.RequirementError("no Java"),
    ],
)
def test_errors_survive_pickling(error):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.__dict__ == error.__dict__


def test_what_is_no_setting_of_a_cluster_gets_no_hint_of_one():
    columns = ["workers", "num_workers", "stores"]
    assert errors.did_you_mean("store", columns) == " (did you mean 'stores'?)"
    assert errors.did_you_mean("store", columns, errors.OF_PEERS) == " (here it is ctx.checkpoint(path) in the program)"


def test_every_error_is_a_cluster_error():
    kinds = [kind for kind in map(vars(errors).get, errors.__all__) if issubclass(kind, Exception)]
    assert kinds
    assert all(issubclass(kind, errors.ClusterError) for kind in kinds)


def test_a_nodes_output_is_shown_after_the_traceback():
    assert "last words" in str(errors.NodeError("worker:0", "h", "killed", output="last words"))
    text = str(errors.NodeError("worker:0", "h", "exited", traceback="T", output="last words"))
    assert text.endswith("Traceback of worker:0:\nT\n\nThe last output of worker:0:\nlast words")


def test_of_a_long_output_the_end_is_shown():
    output = "\n".join(f"line {i}" for i in range(100))
    text = str(errors.NodeError("worker:0", "h", "killed", output=output))
    assert "The last output of worker:0 (30 lines; the attribute output has 100):\nline 70\n" in text
    assert text.endswith("\nline 99")

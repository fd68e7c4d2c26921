"""Arguments and params of the Spark ML stages of 2.x."""

import argparse

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.ml.param.shared import HasSeed
from pyspark.sql import Row

import tensorflowonspark as tfos
from tensorflowonspark import pipeline
from tensorflowonspark.pipeline import Namespace, TFEstimator, TFModel
from tests.support.commands import run_python

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(180)]

ESTIMATOR = {
    "input_mapping": {}, "cluster_size": 1, "num_ps": 0, "driver_ps_nodes": False, "input_mode": 1,
    "master_node": "chief", "protocol": "grpc", "tensorboard": False, "model_dir": None, "export_dir": None,
    "tfrecord_dir": None, "batch_size": 100, "epochs": 1, "readers": 1, "steps": 1000, "grace_secs": 30,
}  # fmt: skip
MODEL = {
    "input_mapping": {}, "output_mapping": {}, "batch_size": 100, "model_dir": None, "export_dir": None,
    "signature_def_key": None, "tag_set": None,
}  # fmt: skip
ACCESSORS = {
    "driver_ps_nodes": "DriverPSNodes", "num_ps": "NumPS", "tfrecord_dir": "TFRecordDir", "tensorboard": "Tensorboard",
}  # fmt: skip


def unused(args, ctx):
    raise AssertionError("nothing must start")


# ---- arguments and params


NAMES = st.sampled_from(["lr", "epochs", "model_dir", "x", "_y"])
VALUES = st.integers() | st.text("ab", max_size=3) | st.none() | st.lists(st.integers(), max_size=3)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(NAMES, VALUES))
def test_arguments_are_the_same_whatever_they_come_from(known):
    args = Namespace(known)
    assert vars(args) == known
    assert list(args) == list(known)
    assert all(name in args and getattr(args, name) == value for name, value in known.items())
    assert "no such name" not in args
    assert args.argv is None
    assert args == Namespace(args) == Namespace(argparse.Namespace(**known)) == argparse.Namespace(**known)
    assert args != Namespace({**known, "more": 1})
    Namespace(args).more = 1
    assert "more" not in args


def test_arguments_are_read_on_nodes_without_spark():
    program = "import sys, tensorflowonspark.v2.program; print('pyspark' in sys.modules)"
    assert Namespace.__module__ == "tensorflowonspark.v2.program"
    assert run_python(program) == "False\n"


def test_arguments_of_a_command_line_and_of_nothing():
    args = Namespace(["--epochs", "3"])
    assert args.argv == list(args) == ["--epochs", "3"]
    assert str(args) == "['--epochs', '3']"
    for wrong in (None, 3, "--epochs"):
        with pytest.raises(tfos.SpecError, match="arguments are a dict, a list"):
            Namespace(wrong)


@pytest.mark.parametrize(
    ("make", "defaults"), [(lambda: TFEstimator(unused, {}), ESTIMATOR), (lambda: TFModel({}), MODEL)]
)
def test_defaults_setters_and_getters(make, defaults):
    stage = make()
    assert vars(stage.merge_args_params()) == defaults
    for name, default in defaults.items():
        title = ACCESSORS.get(name, "".join(word.title() for word in name.split("_")))
        value = {"a": "b"} if isinstance(default, dict) else type(default)(1) if default is not None else "text"
        assert getattr(stage, f"get{title}")() == default
        assert getattr(stage, f"set{title}")(value) is stage
        assert getattr(stage, f"get{title}")() == value == getattr(stage.merge_args_params(), name)


def test_params_refuse_what_they_cant_be():
    stage = TFEstimator(unused, {})
    with pytest.raises(TypeError, match="batch_size"):
        stage.setBatchSize("many")
    with pytest.raises(TypeError, match=r"input_mapping.*\['x'\] to a dict"):
        stage.setInputMapping(["x"])
    with pytest.raises(tfos.SpecError, match=r"TFCluster\.run"):
        stage.setInputMode(0)
    assert stage.setInputMode(1).getInputMode() == 1
    with pytest.raises(tfos.SpecError, match=r"export in train_fn itself"):
        TFEstimator(unused, {}, export_fn=unused)
    assert pipeline.TFTypeConverters.toDict(Row(x="y").asDict()) == {"x": "y"}


INTEGERS = ["batch_size", "cluster_size", "epochs", "grace_secs", "num_ps", "readers", "steps"]


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(st.sampled_from([*INTEGERS, "lr"]), st.integers(0, 9)),
    st.dictionaries(st.sampled_from(INTEGERS), st.integers(0, 9)),
)
def test_what_was_set_wins_over_arguments_and_these_over_defaults(args, params):
    stage = TFEstimator(unused, args)
    stage._set(**params)
    merged = stage.merge_args_params()
    assert vars(merged) == {**ESTIMATOR, **args, **params}
    assert vars(stage.args) == args
    assert vars(stage.copy({stage.epochs: 17}).merge_args_params()) == {**vars(merged), "epochs": 17}


def test_stages_of_the_users_own():
    class Mine(pipeline.TFParams, pipeline.HasSteps, HasSeed):
        pass

    stage = Mine().setSteps(5)
    stage._setDefault(seed=1)
    assert stage.merge_args_params() == Namespace({"steps": 5, "seed": 1})


@pytest.mark.deep
@pytest.mark.parametrize("stage", [TFEstimator, TFModel])
def test_stages_can_not_be_saved_as_in_2_x(stage):
    """So there are none to load: docs/migrating.md says that."""
    assert not [name for name in ("write", "save", "read", "load") if hasattr(stage, name)]

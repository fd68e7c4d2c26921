"""KerasTuner's distributed mode in unchanged scripts."""

import json
import subprocess

import pytest

import tensorflowonspark as tfos
from tests.support.commands import TFOS

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]
SCRIPT = """
import json, os, pathlib, sys
import keras, keras_tuner
from sklearn.datasets import load_digits

def build(hp):
    layers = [keras.Input((64,)), keras.layers.Dense(hp.Choice("units", [4, 8, 16]), "relu")]
    model = keras.Sequential([*layers, keras.layers.Dense(10, "softmax")])
    rate = hp.Float("rate", 1e-3, 1e-1, sampling="log")
    model.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model

x, y = load_digits(return_X_y=True)
tuner = keras_tuner.RandomSearch(
    build, "val_accuracy", max_trials=4, seed=1, overwrite=True, directory="results", project_name="digits"
)
tuner.search(x[:400] / 16, y[:400], epochs=1, validation_data=(x[400:500] / 16, y[400:500]), verbose=0)
best = tuner.get_best_hyperparameters()[0]  # in every process, after the search
scores = [len(model.weights) for model in tuner.get_best_models(2)]
name = os.environ.get("KERASTUNER_TUNER_ID", f"alone{os.getpid()}")
pathlib.Path(f"found-{name}.json").write_text(json.dumps([best.values, scores]))
"""


def found(directory):
    return {each.stem[len("found-") :]: json.loads(each.read_text()) for each in directory.glob("found-*.json")}


@pytest.mark.masters("local")
def test_a_script_with_a_search_runs_on_all_workers_together(spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results/digits").mkdir(parents=True)
    (tmp_path / "results/digits/oracle.json").write_text("of an earlier search")
    (tmp_path / "search.py").write_text(SCRIPT)
    tfos.run_script(spark, "search.py", num_workers=3)
    results = found(tmp_path)
    assert sorted(results) == ["chief", "tuner0", "tuner1"]
    assert len({json.dumps(each) for each in results.values()}) == 1  # all know the same best trials
    trials = [json.loads(each.read_text()) for each in (tmp_path / "results/digits").glob("trial_*/trial.json")]
    assert [each["status"] for each in trials] == ["COMPLETED"] * 4


@pytest.mark.masters("local")
def test_a_variable_of_the_users_own_turns_it_off(spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "search.py").write_text(SCRIPT.replace('"results"', 'f"results-{os.getpid()}"'))
    tfos.run_script(spark, "search.py", num_workers=2, env={"KERASTUNER_TUNER_ID": "tuner0"})
    assert len(list(tmp_path.glob("results-*"))) == 2
    assert len(list(tmp_path.glob("results-*/digits/trial_*"))) == 8


def test_from_a_shell(tmp_path):
    (tmp_path / "search.py").write_text(SCRIPT)
    command = [*TFOS, "run", "--master", "local[3]", "--workers", "3", "search.py"]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert sorted(found(tmp_path)) == ["chief", "tuner0", "tuner1"]
    assert "this one runs the oracle, the others the trials" in done.stderr

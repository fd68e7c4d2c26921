"""Trials of a study on an application without Spark, with clusters of scripted nodes."""

import logging
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from threading import Event, Timer

import optuna
import pytest
from optuna.trial import TrialState

import tensorflowonspark as tfos
from tensorflowonspark.errors import FailureKind
from tensorflowonspark.messages import Failed, ReportedMetrics, TrainingTotals
from tensorflowonspark.search.leftovers import end_leftovers, mark
from tensorflowonspark.search.trials import Search, Settings
from tensorflowonspark.search.tune import _pruning, tune
from tests.support.backend import cluster_on
from tests.support.commands import run_python
from tests.support.ledger import Application
from tests.support.paths import ROOT
from tests.support.programs import wait_for
from tests.support.scripted import returns

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def quiet():
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def search(application, objective, study=None, *, prune_by=None, **settings):
    """Run trials, and return the study; no slot is held after it."""
    study = study or optuna.create_study()
    chosen = {
        "nodes": 1,
        "trials": 8,
        "jobs": None,
        "timeout": None,
        "pruning": _pruning(study, prune_by),
        "catch": (Exception,),
        "max_failures": 3,
        **settings,
    }
    held = application.ledger.held()
    try:
        Search(study, objective, application, application.slots, Settings(**chosen)).run()
    finally:
        assert application.ledger.held() == held
        assert not study.get_trials(states=(TrialState.RUNNING,))
    return study


def states(study):
    return [each.state.name for each in study.trials]


def run_cluster(application, *scripts):
    """Return what a cluster of scripted nodes returns, which holds its slots."""
    with cluster_on(application.backend(*scripts), num_workers=len(scripts), nodes=tfos.Nodes(hold=True)) as cluster:
        return cluster.shutdown()["worker:0"]


def test_trials_run_at_the_same_time_on_the_slots_that_there_are():
    application, lock, running, most = Application(6), threading.Lock(), [], []

    def objective(trial):
        with lock:
            running.append(trial.number)
            most.append(len(running))
        value = trial.suggest_float("x", -1, 1)
        found = run_cluster(application, *[returns(value**2)] * 2)
        application.check()
        with lock:
            running.remove(trial.number)
        return found

    study = search(application, objective, nodes=2, trials=12)
    assert states(study) == ["COMPLETE"] * 12
    assert max(most) == 3
    assert study.best_value == pytest.approx(min(each.params["x"] ** 2 for each in study.trials))


def test_clusters_of_a_trial_share_its_slots_and_no_others():
    application = Application(4)

    def objective(trial):
        with cluster_on(application.backend(returns(1)), num_workers=1, nodes=tfos.Nodes(hold=True)):
            with cluster_on(application.backend(returns(1)), num_workers=1, nodes=tfos.Nodes(hold=True)):
                assert sum(each.count for each in application.ledger.held()) <= 4
                with pytest.raises(tfos.SlotsError, match="same thread have 2 more"):
                    cluster_on(application.backend(returns(1)), num_workers=1, nodes=tfos.Nodes(hold=True)).start()
        return 1.0

    assert states(search(application, objective, nodes=2, trials=4)) == ["COMPLETE"] * 4


def test_a_cluster_larger_than_a_trials_share_ends_the_search_with_the_remedy():
    application = Application(4)
    with pytest.raises(
        tfos.SlotsError, match=r"needs 2 task slots.*has 1: .*reserve more \(num_workers of tfos.tune\)"
    ):
        search(application, lambda trial: run_cluster(application, *[returns(1)] * 2))


def test_a_trial_that_fails_is_recorded_with_its_error_and_the_others_go_on(caplog):
    caplog.set_level(logging.INFO, "tensorflowonspark")

    def objective(trial):
        x = trial.suggest_int("x", 0, 100)
        if trial.number in (1, 3):
            raise tfos.NodeError("worker:0", "h7", "it ran out of memory", traceback="a long one")
        return x

    study = search(Application(1), objective, trials=5)
    assert states(study) == ["COMPLETE", "FAIL", "COMPLETE", "FAIL", "COMPLETE"]
    assert study.trials[1].user_attrs["error"].startswith("NodeError: worker:0 on h7 failed: it ran out of memory")
    # The line of an earlier test's search may come late; it has no value of x.
    wait_for(lambda: len([each for each in caplog.messages if re.match(r"trial \d \(x=", each)]) == 5)
    line = next(each for each in caplog.messages if each.startswith("trial 1 "))
    assert "failed: NodeError: worker:0 on h7 failed: it ran out of memory in 0.0 s" in line
    assert "\n" not in line


@pytest.mark.deep
@pytest.mark.parametrize(("verbosity", "lines"), [("INFO", 2), ("WARNING", 0)])
def test_without_logging_trials_are_shown_as_optuna_shows_them(verbosity, lines, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        f"""
import optuna
from tensorflowonspark.search.trials import Search, Settings
from tensorflowonspark.search.watching import Pruning
from tests.support.ledger import Application

study = optuna.create_study()
optuna.logging.set_verbosity(optuna.logging.{verbosity})
application, pruning = Application(1), Pruning(None, active=False)
settings = Settings(1, 2, None, None, pruning, (Exception,), 3)
Search(study, lambda trial: trial.suggest_int("x", 5, 5), application, application.slots, settings).run()
"""
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    found = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    shown = [line for line in found.stderr.splitlines() if line.startswith("trial ")]
    assert len(shown) == lines, found.stderr
    assert all(re.fullmatch(r"trial \d \(x=5\): 5 in 0\.\d s; the best is 5 \(trial \d\)", line) for line in shown)


@pytest.mark.filterwarnings("ignore")  # constraints_func: experimental in Optuna 4, deprecated in 5
def test_a_study_none_of_whose_trials_meets_the_constraints_goes_on():
    sampler = optuna.samplers.TPESampler(constraints_func=lambda trial: (1.0,))
    study = search(Application(1), lambda trial: 1.0, optuna.create_study(sampler=sampler), trials=3)
    assert states(study) == ["COMPLETE"] * 3
    with pytest.raises(ValueError, match="feasible"):
        _ = study.best_trial


def test_lines_of_a_trials_cluster_have_its_number():
    application, found = Application(1), []

    def objective(trial):
        cluster = cluster_on(application.backend(returns(1)), nodes=tfos.Nodes(hold=True))
        found.append((trial.number, cluster._run.console._about))
        with cluster:
            return 1.0

    search(application, objective, trials=2)
    assert found == [(0, {"trial": 0}), (1, {"trial": 1})]


@pytest.mark.parametrize("value", [None, math.nan, "much", (1.0, 2.0)])
def test_a_value_that_is_no_number_is_a_failure_with_that_value(value):
    study = search(Application(1), lambda trial: value if trial.number else 1.0, trials=2)
    assert states(study) == ["COMPLETE", "FAIL"]
    assert study.trials[1].user_attrs["error"] == f"ValueError: the objective returned {value!r}: expected a number"


def test_an_objective_that_always_fails_is_not_tried_fifty_times():
    study = optuna.create_study()
    with pytest.raises(NameError, match="typo"):
        search(Application(1), lambda trial: typo, study, trials=50)  # noqa: F821 - on purpose
    assert states(study) == ["FAIL"] * 3


def test_failures_after_a_success_do_not_end_a_search():
    study = search(Application(1), lambda trial: 1.0 if trial.number < 1 else 1 / 0, trials=7)
    assert states(study) == ["COMPLETE"] + ["FAIL"] * 6


@pytest.mark.parametrize("error", [tfos.SpecError("epochs=0"), tfos.SlotsError(2, 1, "ask for more"), KeyError("a")])
def test_bad_input_and_errors_that_are_not_to_be_caught_end_the_search(error):
    study, waiting = optuna.create_study(), Event()

    def objective(trial):
        if trial.number == 2:
            raise error
        if trial.number > 2:
            waiting.wait(5)
            time.sleep(0.05)
        return 1.0

    Timer(0.5, waiting.set).start()
    with pytest.raises(type(error)) as caught:
        search(Application(2), objective, study, catch=(ValueError,), trials=50)
    assert caught.value is error
    assert len(study.trials) <= 5


def test_an_application_that_ends_ends_the_search():
    application, study = Application(1), optuna.create_study()

    def objective(trial):
        if trial.number == 1:
            application._jsc = None
            raise RuntimeError("Py4J: the gateway is gone")
        return 1.0

    with pytest.raises(RuntimeError, match="gateway"):
        search(application, objective, study)
    assert len(study.trials) == 2


def test_an_interrupt_ends_the_clusters_and_marks_their_trials_as_failed():
    application, study, started = Application(2), optuna.create_study(), []

    def objective(trial):
        with cluster_on(application.backend(lambda node: None), num_workers=1, nodes=tfos.Nodes(hold=True)) as cluster:
            started.append(trial.number)
            if len(started) == 2:
                signal.raise_signal(signal.SIGINT)
            cluster.join()

    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        search(application, objective, study)
    assert time.monotonic() - begin < 20
    assert states(study) == ["FAIL", "FAIL"]
    assert study.trials[0].user_attrs["error"] == "ClusterError: the search was interrupted"


def test_trials_that_wait_for_slots_end_with_the_search():
    application, study = Application(2), optuna.create_study()
    others = application.slots.acquire("cluster 'other'", 2, 2, lambda: None)
    Timer(0.3, signal.raise_signal, [signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        search(application, lambda trial: 1.0, study, jobs=3)
    others.release()
    assert not study.trials  # Optuna is asked when there are slots


def test_no_trial_starts_after_the_timeout_or_when_the_study_is_stopped():
    study = search(Application(1), lambda trial: time.sleep(0.1) or 1.0, trials=None, timeout=0.35)
    assert 2 <= len(study.trials) <= 5
    stop = optuna.study.MaxTrialsCallback(10, states=(TrialState.COMPLETE,))
    assert len(search(Application(1), lambda trial: 1.0, study, trials=None, callbacks=(stop,)).trials) == 10

    def objective(trial):
        trial.study.stop()
        return 1.0

    assert len(search(Application(1), objective, study).trials) == 11


def test_a_study_of_two_objectives():
    study = optuna.create_study(directions=["minimize", "maximize"])
    search(Application(2), lambda trial: (trial.suggest_float("x", 0, 1), trial.suggest_float("y", 0, 1)), study)
    assert states(study) == ["COMPLETE"] * 8
    assert study.best_trials


# ---- pruning


def epochs(*losses, name="val_loss", value=1.0):
    """Return the script of a node that reports epochs until it is stopped, or returns."""

    def script(node):
        for number, loss in enumerate(losses):
            node.send(TrainingTotals(metrics=(ReportedMetrics(number, {name: loss, "loss": 0.0}, ended=True),)))
            time.sleep(0.05)
        returns(value)(node)

    return script


def test_a_trial_is_pruned_by_the_metrics_of_its_cluster():
    application = Application(1)
    losses = [[0.1, 0.1, 0.1], [0.1, 9.0] + [0.1] * 40, [0.2, 0.2, 0.2]]
    study = optuna.create_study(pruner=optuna.pruners.ThresholdPruner(upper=1.0))
    search(application, lambda trial: run_cluster(application, epochs(*losses[trial.number])), study, trials=3)
    assert states(study) == ["COMPLETE", "PRUNED", "COMPLETE"]
    assert [each.intermediate_values for each in study.trials] == [
        {0: 0.1, 1: 0.1, 2: 0.1},
        {0: 0.1, 1: 9.0},
        {0: 0.2, 1: 0.2, 2: 0.2},
    ]


class SlowPruner(optuna.pruners.BasePruner):
    """Prunes when the cluster is between two attempts."""

    def prune(self, study, trial):
        time.sleep(0.5)
        return True


def dies_twice(node):
    """Between the second attempt and the third there is a pause."""
    if node.plan.config.attempt == 2:
        returns(1.0)(node)
    if node.plan.config.attempt == 1:
        node.send(TrainingTotals(metrics=(ReportedMetrics(0, {"loss": 1.0}, ended=True),)))
    node.send(Failed(FailureKind.KILLED, "killed"))


@pytest.mark.parametrize("end", ["pruned", "the search ends"])
def test_a_cluster_that_is_cancelled_between_two_attempts_has_no_other(end):
    application, backends = Application(2), []
    pruner = SlowPruner() if end == "pruned" else optuna.pruners.NopPruner()
    study = optuna.create_study(pruner=pruner)

    def objective(trial):
        if trial.number == 1:
            time.sleep(0.7)
            raise tfos.SpecError("it is wrong")
        backends.append(application.backend(dies_twice))
        policy = tfos.RestartPolicy(2, backoff=1.0 if end == "pruned" else 40.0)
        with cluster_on(backends[0], num_workers=1, nodes=tfos.Nodes(hold=True), restarts=policy) as cluster:
            return cluster.shutdown()["worker:0"]

    began = time.monotonic()
    if end == "pruned":
        search(application, objective, study, trials=1)
        assert states(study) == ["PRUNED"]
    else:
        with pytest.raises(tfos.SpecError, match="it is wrong"):
            search(application, objective, study, trials=2)
        assert states(study) == ["FAIL", "FAIL"]
        assert time.monotonic() - began < 15
    assert len(backends[0].plans) == 2


def test_a_cluster_that_a_trial_makes_after_its_end_does_not_start():
    application = Application(1)
    study = optuna.create_study(pruner=SlowPruner())
    backends = []

    def objective(trial):
        try:
            run_cluster(application, epochs(*[1.0] * 20))
        except optuna.TrialPruned:
            backends.append(application.backend(returns(1.0)))
            with cluster_on(backends[0], num_workers=1, nodes=tfos.Nodes(hold=True)) as cluster:
                return cluster.shutdown()["worker:0"]

    search(application, objective, study, trials=1)
    assert states(study) == ["PRUNED"]
    assert backends[0].plans == []


def test_further_trainings_of_a_trial_count_on_from_the_steps_of_the_first():
    application = Application(1)
    study = optuna.create_study(pruner=optuna.pruners.ThresholdPruner(upper=10.0))

    def objective(trial):
        run_cluster(application, epochs(1, 2))
        return run_cluster(application, epochs(3, 4))

    search(application, objective, study, trials=1)
    assert study.trials[0].intermediate_values == {0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0}


@pytest.mark.deep
def test_the_metric_to_prune_by_can_be_named():
    application = Application(1)
    pruner = optuna.pruners.ThresholdPruner(lower=0.5)
    study = optuna.create_study(direction="maximize", pruner=pruner)
    script = epochs(0.1, *[0.9] * 40, name="val_accuracy")
    search(application, lambda _: run_cluster(application, script), study, trials=1, prune_by="val_accuracy")
    assert states(study) == ["PRUNED"]


def test_a_metric_that_no_epoch_has_is_named_in_the_log(caplog):
    application = Application(1)
    study = optuna.create_study(pruner=optuna.pruners.ThresholdPruner(upper=0.0))
    search(application, lambda _: run_cluster(application, epochs(1, 2)), study, trials=2, prune_by="val_los")
    assert states(study) == ["COMPLETE"] * 2
    assert caplog.messages == ["no trial is pruned: an epoch has reported loss, val_loss, and not val_los (prune_by)"]


def test_a_study_that_maximises_is_not_pruned_by_a_loss(caplog):
    caplog.set_level(logging.INFO, "tensorflowonspark")
    application = Application(1)
    study = optuna.create_study(direction="maximize", pruner=optuna.pruners.ThresholdPruner(upper=0.0))
    search(application, lambda _: run_cluster(application, epochs(1, 2)), study, trials=2)
    assert states(study) == ["COMPLETE"] * 2
    wait_for(lambda: any("no trial is pruned unless prune_by names a metric" in each for each in caplog.messages))


# ---- resuming

_KILLED = """
import os, sys, optuna
from tensorflowonspark.search.leftovers import mark
study = optuna.create_study(study_name="s", storage=sys.argv[1], load_if_exists=True)
study.tell(study.ask(), 1.0)
for x in (2, 3):
    trial = study.ask()
    trial.suggest_int("x", x, x)
    mark(trial)
os._exit(9)
"""


@pytest.mark.parametrize("name", ["host", "pids"])
def test_trials_of_a_driver_elsewhere_are_left_alone(name):
    """Its pid may be one that no process has here: a container with the same host name has pids of its own."""
    study = optuna.create_study()
    trial = study.ask()
    mark(trial)
    driver = {**trial.user_attrs["tfos:driver"], "pid": 1 << 30}
    trial.set_user_attr("tfos:driver", {**driver, name: "another"})
    assert end_leftovers(study) == 0
    trial.set_user_attr("tfos:driver", driver)
    assert end_leftovers(study) == 1


@pytest.mark.slow
def test_trials_of_a_killed_driver_are_marked_as_failed_and_tried_again(tmp_path):
    storage = f"sqlite:///{tmp_path}/study.db"
    for _ in range(2):
        killed = subprocess.run([sys.executable, "-c", _KILLED, storage], check=False, capture_output=True)
        assert killed.returncode == 9, killed.stderr
    study = optuna.load_study(study_name="s", storage=storage)
    other = study.ask()  # of a program that runs trials by itself
    assert end_leftovers(study) == 4
    assert end_leftovers(study) == 0
    assert states(study).count("FAIL") == 4
    assert study.trials[1].user_attrs["error"] == "the driver's process ended while it ran"
    study.tell(other, 1.0)
    search(Application(1), lambda trial: trial.suggest_int("x", 0, 9), study, trials=4)
    again = [each for each in study.trials if "tfos:retry_of" in each.user_attrs]
    assert [(each.params["x"], each.user_attrs["tfos:retry_of"]) for each in again] == [(2, 1), (3, 2), (2, 4), (3, 5)]


def test_a_running_driver_keeps_its_trials(tmp_path):
    study = optuna.create_study(storage=f"sqlite:///{tmp_path}/study.db")
    left = []
    search(Application(1), lambda trial: left.append(end_leftovers(study)) or 1.0, study, trials=1)
    assert left == [0]


# ---- arguments


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"study": 3}, "study=3: expected a study, as optuna.create_study"),
        ({"objective": 3}, "objective=3: expected a function of a trial"),
        ({"n_trials": 0}, "n_trials=0: expected a whole number from 1 on"),
        ({"num_workers": (1, 2)}, r"num_workers=\(1, 2\): expected a whole number"),
        ({"n_jobs": "all"}, "n_jobs='all': expected a whole number from 1 on, or -1 for as many"),
        ({"n_jobs": 0}, "n_jobs=0: expected a whole number from 1 on"),
        ({"num_ps": -1}, "num_ps"),
        ({"timeout": -1}, "timeout=-1: expected seconds above 0"),
        ({"catch": KeyboardInterrupt}, "is no class of exceptions"),
        ({"max_failures": 0}, "max_failures=0"),
        ({"study": optuna.create_study(directions=["minimize"] * 2), "prune_by": "loss"}, "several objectives"),
        ({"spark": object()}, "expected a SparkSession"),
    ],
)
def test_bad_arguments_are_refused_before_anything_starts(arguments, words):
    given = {"study": optuna.create_study(), "objective": lambda trial: 1.0, "spark": Application(1), **arguments}
    with pytest.raises(tfos.SpecError, match=words):
        tune(**given)


@pytest.mark.parametrize(
    ("call", "warnings"),
    [
        (lambda spark, study, objective: tune(spark, study, objective, 7, n_jobs=2), []),
        (lambda spark, study, objective: tune(study, objective, spark, 7, concurrent=2), ["spark, study", "n_jobs"]),
        (lambda spark, study, objective: tune(study, objective, spark=spark, n_trials=7, n_jobs=2), ["spark, study"]),
        (
            lambda spark, study, objective: tune(study, objective=objective, spark=spark, n_trials=7, n_jobs=2),
            ["spark"],
        ),
        (lambda spark, study, objective: tune(study=study, objective=objective, spark=spark, n_trials=7, n_jobs=2), []),
    ],
)
def test_the_session_is_the_first_argument_and_was_the_third(monkeypatch, recwarn, call, warnings):
    seen = []

    class Recorded:
        def __init__(self, study, objective, spark, slots, settings):
            seen.append((spark, study, objective, settings.trials, settings.jobs, settings.nodes))

        def run(self):
            pass

    monkeypatch.setattr("tensorflowonspark.search.tune.Search", Recorded)
    monkeypatch.setattr("tensorflowonspark.search.tune.ApplicationSlots", lambda context, profile: Application(4))
    monkeypatch.setattr(Application, "require", lambda self, nodes, timeout: None, raising=False)
    monkeypatch.setattr(Application, "sparkContext", None, raising=False)
    study, objective, spark = optuna.create_study(), lambda trial: 1.0, Application(4)
    assert call(spark, study, objective) is study
    assert seen == [(spark, study, objective, 7, 2, 1)]
    told = [
        str(each.message) for each in recwarn if each.category is DeprecationWarning and "tune(" in str(each.message)
    ]
    assert len(told) == len(warnings)
    assert all(word in text for word, text in zip(warnings, told, strict=True))
    with pytest.raises(TypeError, match="multiple values for argument 'spark'"):
        tune(study, objective, spark, spark=spark)


def test_the_name_of_the_function_is_not_that_of_a_module():
    import tensorflowonspark.search.tune  # noqa: F401

    assert tfos.tune is tune


def test_a_missing_optuna_is_named_with_its_extra():
    program = (
        "import sys; sys.modules['optuna'] = None\n"
        "import tensorflowonspark as tfos\n"
        "try: tfos.tune(None, None, print)\n"
        "except tfos.SpecError as error: print(error)"
    )
    assert run_python(program).strip() == "tfos.tune needs Optuna: pip install 'tensorflowonspark[tune]'"

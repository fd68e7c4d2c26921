"""Searches and cross-validations whose trainings share the slots of one application."""

import time

import optuna
import pytest
from optuna.trial import TrialState
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder, TrainValidationSplit

import tensorflowonspark as tfos
from tensorflowonspark.driver.spark.slots import ApplicationSlots
from tensorflowonspark.messages import ReportedMetrics, TrainingTotals
from tensorflowonspark.ml import KerasEstimator

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(480)]


@pytest.fixture(autouse=True)
def no_slot_is_held(spark):
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    yield
    assert not ApplicationSlots(spark.sparkContext).ledger.held()


@pytest.fixture
def rows(spark):
    return spark.createDataFrame([([1.0, 0.0], 0), ([0.0, 1.0], 1)] * 20, "features array<float>, label int").cache()


def estimator(rate=0.1, **settings):
    def build():
        import keras

        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, "softmax")])
        model.compile(keras.optimizers.SGD(rate), "sparse_categorical_crossentropy")
        return model

    return KerasEstimator(build, **{"seed": 1, "batchSize": 8, "clusterOptions": {"log_level": "WARNING"}, **settings})


def test_trials_of_an_estimator(spark, rows):
    def objective(trial):
        est = estimator(trial.suggest_float("rate", 1e-3, 10.0, log=True))
        if trial.number == 1:
            raise RuntimeError("this one fails")
        return est.fit(rows).history["loss"][-1]

    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(1))
    assert tfos.tune(spark, study, objective, n_trials=3, n_jobs=2) is study
    assert sorted(each.state.name for each in study.trials) == ["COMPLETE"] * 2 + ["FAIL"]
    assert study.best_value == min(each.value for each in study.trials if each.value is not None)


def cross_validator(est, parallelism, kind=CrossValidator, **settings):
    grid = ParamGridBuilder().addGrid(est.epochs, [1, 20]).addGrid(est.batchSize, [4, 8]).build()
    evaluator = MulticlassClassificationEvaluator(metricName="accuracy")
    return kind(estimator=est, estimatorParamMaps=grid, evaluator=evaluator, parallelism=parallelism, **settings)


@pytest.mark.slow
def test_trainings_of_a_cross_validator_wait_for_each_other(spark, rows):
    """Four trainings of two workers at a time, on four slots."""
    found = cross_validator(estimator(numWorkers=2), 4, numFolds=2, seed=3).fit(rows)
    assert found.avgMetrics[2:] == [1.0, 1.0]  # those of twenty epochs
    assert found.bestModel.transform(rows).where("prediction = label").count() == rows.count()


@pytest.mark.slow
def test_clusters_that_hold_all_slots_wait_longer_than_a_start_may_take(spark):
    """Before there was a queue, Spark kept the second one waiting, and its start failed."""
    from threading import Thread

    results = []

    def run(seconds):
        program = lambda: time.sleep(seconds)  # noqa: E731
        results.append(tfos.run(spark, program, num_workers=4, nodes=tfos.Nodes(start_timeout=30.0)))

    threads = [Thread(target=run, args=(33,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 2


@pytest.mark.slow
def test_a_grid_search_within_a_trial_uses_the_slots_of_the_trial(spark, rows):
    """Spark's threads inherit the trial's reservation; with the slots of others they would wait for ever."""

    def objective(trial):
        model = cross_validator(estimator(), 4, TrainValidationSplit, trainRatio=0.5, seed=trial.number).fit(rows)
        return max(model.validationMetrics)

    study = tfos.tune(spark, optuna.create_study(direction="maximize"), objective, n_trials=2, num_workers=2, n_jobs=2)
    assert [each.value for each in study.trials] == [1.0, 1.0]


def epochs_of(values):
    """Return a program that reports a value for each epoch, and then trains on for a minute."""

    def program(ctx):
        for epoch, value in enumerate(values):
            ctx._link.send(TrainingTotals(metrics=(ReportedMetrics(epoch, {"loss": value}, ended=True),)))
            time.sleep(0.2)
        time.sleep(60.0 if values[-1] > 1 else 0.0)
        return values[-1]

    return program


def test_a_trial_that_is_not_promising_is_ended(spark):
    losses = {0: [0.3, 0.2], 1: [0.3, 7.0], 2: [9.0]}
    pruner = optuna.pruners.ThresholdPruner(upper=1.0)

    def objective(trial):
        return tfos.run(spark, epochs_of(losses[trial.number]), logs=tfos.Logs(log_level="ERROR"))["worker:0"]

    begin = time.monotonic()
    study = tfos.tune(spark, optuna.create_study(pruner=pruner), objective, n_trials=3, n_jobs=2)
    assert time.monotonic() - begin < 50
    assert [each.state for each in study.trials] == [TrialState.COMPLETE, TrialState.PRUNED, TrialState.PRUNED]
    assert study.trials[1].intermediate_values == {0: 0.3, 1: 7.0}


@pytest.mark.slow
def test_epochs_of_keras_prune_a_trial(spark, rows):
    study = optuna.create_study(pruner=optuna.pruners.ThresholdPruner(upper=0.0))  # no loss is as small
    tfos.tune(spark, study, lambda _: estimator(epochs=200).fit(rows).history["loss"][-1], n_trials=1)
    assert study.trials[0].state is TrialState.PRUNED
    assert len(study.trials[0].intermediate_values) < 200

"""The trials of an Optuna study on the slots of a Spark application."""

import functools
import logging
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tensorflowonspark.config import ClusterSpec
from tensorflowonspark.driver.spark.backend import is_remote
from tensorflowonspark.driver.spark.gpu_profiles import gpu_profile
from tensorflowonspark.driver.spark.slots import ApplicationSlots
from tensorflowonspark.errors import SpecError
from tensorflowonspark.renamed import warn_renamed
from tensorflowonspark.search.leftovers import end_leftovers
from tensorflowonspark.search.trials import Callback, Objective, Search, Settings
from tensorflowonspark.search.watching import Pruning
from tensorflowonspark.settings import Nodes, check_seconds
from tensorflowonspark.terminal import CONSOLE, in_notebook

if TYPE_CHECKING:
    from optuna import Study
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
_Tune = TypeVar("_Tune", bound=Callable[..., "Study"])
_OLD_ORDER = ("study", "objective", "spark", "n_trials")


def _takes_old_order(function: _Tune) -> _Tune:
    """Return `tune`, which takes a study before the session too, and the word ``concurrent``, as it once did."""

    @functools.wraps(function)
    def called(*args: Any, **given: Any) -> "Study":
        if args and hasattr(args[0], "ask") and len(args) <= len(_OLD_ORDER):
            warn_renamed("tune(study, objective, spark)", "tune(spark, study, objective)")
            old = dict(zip(_OLD_ORDER, args, strict=False))
            if twice := next((name for name in old if name in given), None):
                raise TypeError(f"tune() got multiple values for argument {twice!r}")
            args, given = (), {**old, **given}
        if given.get("concurrent") == "auto":
            given["concurrent"] = -1
        if "concurrent" in given and "n_jobs" not in given:
            warn_renamed("tune(concurrent=...)", "tune(n_jobs=...)")
            given["n_jobs"] = given.pop("concurrent")
        return function(*args, **given)

    return called  # type: ignore[return-value]


@_takes_old_order
def tune(  # noqa: PLR0913 - all but the first four are settings that are named at the call
    spark: "SparkSession",
    study: "Study",
    objective: Objective,
    n_trials: int | None = 50,
    *,
    n_jobs: int = -1,
    num_workers: int = 1,
    num_ps: int = 0,
    chief: bool = False,
    timeout: float | None = None,
    prune_by: str | None = None,
    catch: type[Exception] | Sequence[type[Exception]] = Exception,
    max_failures: int | None = 3,
    callbacks: Sequence[Callback] = (),
    show_progress_bar: bool | None = None,
    gpus_per_node: int | None = None,
) -> "Study":
    """Run trials of an Optuna study, several at a time, whose clusters share the slots of one Spark application.

    Each trial runs in a thread of the driver and has task slots of its own: the clusters that its objective starts take
    these, and others wait. At the end of each epoch their metrics are reported to Optuna, and a trial that its pruner
    gives up is ended. A trial that fails is marked as failed, with its error in the attribute ``error``, and the others
    go on.

    Needs the extra ``tune``.

    Parameters
    ----------
    spark : SparkSession
        The application on whose executors the nodes run.
    study : optuna.Study
        The study, with sampler, pruner and storage. Trials that a driver of this host has left behind, because its
        process ended, are marked as failed first, and their parameters are tried again.
    objective : callable
        As for ``Study.optimize``: takes an ``optuna.Trial`` and returns its value, or a value for each direction of the
        study. It may fit a `KerasEstimator`, or use `run` and `Cluster`.
    n_trials : int, optional
        The number of trials of this call, beside those that the study has already; None for no limit. With
        ``callbacks=[optuna.study.MaxTrialsCallback(50)]`` the limit counts all trials of the study.
    n_jobs : int
        The most trials at the same time, as for ``Study.optimize``; -1 for as many as the application has slots for,
        at least one.
    num_workers, num_ps : int
        Workers and parameter servers that the clusters of a trial have at the same time. Each trial has a task slot for
        each of its nodes.
    chief : bool
        Whether a trial has a slot for a chief beside these. (An evaluator counts as a worker here.)
    timeout : float, optional
        Seconds after which no further trial starts; those that run go on to their end.
    prune_by : str, optional
        The metric of an epoch by which trials are pruned, as ``"val_accuracy"``. By default ``val_loss``, or else
        ``loss``, if the study minimises one value; other studies do not prune without it.
    catch : type or sequence of types
        The errors of a trial after which the others go on. A `SlotsError` or a `SpecError` ends the search in any case.
    max_failures : int, optional
        If so many trials have failed before the first one of this call succeeds, the search ends with the last one's
        error; None to go on.
    callbacks : sequence of callable
        Called with the study and each trial that has ended, one after another, as by ``Study.optimize``. They may call
        ``Study.stop``.
    show_progress_bar : bool, optional
        Whether to draw a bar of the trials; by default on a terminal and in a notebook.
    gpus_per_node : int, optional
        The number of GPUs of each node, if the objective's clusters have this setting too.

    Returns
    -------
    optuna.Study
        The same study: ``best_params``, ``best_trial``, ``trials_dataframe()``.

    Raises
    ------
    SpecError
        If Optuna is missing, or an argument can't be right.
    SlotsError
        If the application has too few slots for a trial.
    Exception
        What a trial has raised, if `catch` and `max_failures` do not let the search go on.

    Examples
    --------
    >>> import optuna
    >>> optuna.logging.set_verbosity(optuna.logging.WARNING)
    >>> def objective(trial):
    ...     x = trial.suggest_float("x", -1, 1)
    ...     return run(spark, lambda args, ctx: (args - 0.5) ** 2, x).chief
    >>> study = tune(spark, optuna.create_study(), objective, n_trials=4)
    >>> len(study.trials), -1 <= study.best_params["x"] <= 1
    (4, True)
    """
    _require_optuna(study)
    if not callable(objective):
        raise SpecError(f"objective={objective!r}: expected a function of a trial")
    if is_remote(spark) or not hasattr(spark, "sparkContext"):
        raise SpecError(
            f"spark={spark!r}: expected a SparkSession of the application's own; over Spark Connect slots can't be "
            "counted: run the search in the application (spark-submit)"
        )
    nodes = len(ClusterSpec(num_workers, num_ps, chief).roles)
    own_profile = None if gpus_per_node is None else gpu_profile(spark.sparkContext, gpus_per_node)
    slots = ApplicationSlots(spark.sparkContext, own_profile)
    settings = Settings(
        nodes=nodes,
        trials=None if n_trials is None else _count("n_trials", n_trials),
        jobs=None if n_jobs == -1 else _count("n_jobs", n_jobs, ", or -1 for as many as there are slots for"),
        timeout=None if timeout is None else check_seconds("timeout", timeout),
        pruning=_pruning(study, prune_by),
        catch=_exceptions(catch),
        max_failures=None if max_failures is None else _count("max_failures", max_failures),
        callbacks=tuple(callbacks),
        bar=(sys.stderr.isatty() or in_notebook()) if show_progress_bar is None else show_progress_bar,
    )
    slots.require(nodes, Nodes.start_timeout)
    end_leftovers(study)
    Search(study, objective, spark, slots, settings).run()
    return study


def _require_optuna(study: Any) -> None:
    try:
        import optuna
    except ImportError as error:
        raise SpecError("tfos.tune needs Optuna: pip install 'tensorflowonspark[tune]'") from error
    if not isinstance(study, optuna.Study):
        raise SpecError(f"study={study!r}: expected a study, as optuna.create_study(...) returns")


def _count(name: str, number: object, other: str = "") -> int:
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise SpecError(f"{name}={number!r}: expected a whole number from 1 on{other}")
    return number


def _exceptions(catch: Any) -> tuple[type[BaseException], ...]:
    found = tuple(catch) if isinstance(catch, Sequence) else (catch,)
    wrong = next((each for each in found if not (isinstance(each, type) and issubclass(each, Exception))), None)
    if wrong is not None:
        raise SpecError(f"catch={catch!r}: {wrong!r} is no class of exceptions")
    return found


def _pruning(study: "Study", metric: str | None) -> Pruning:
    """Return by what trials are pruned."""
    from optuna.pruners import NopPruner
    from optuna.study import StudyDirection

    single = len(study.directions) == 1
    if metric is not None and not single:
        raise SpecError(f"prune_by={metric!r}: Optuna does not prune studies of several objectives: leave it out")
    prunes = single and not isinstance(study.pruner, NopPruner)
    known = metric is not None or (single and study.direction is StudyDirection.MINIMIZE)
    if prunes and not known:
        text = "study %r maximises its objective: no trial is pruned unless prune_by names a metric, as 'val_accuracy'"
        CONSOLE.log(_log, logging.INFO, text, study.study_name)
    return Pruning(metric, active=prunes and known)

"""Trials that a driver has left behind: marked with its process while they run, ended by the next search."""

import logging
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from tensorflowonspark.terminal import CONSOLE

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

_log = logging.getLogger(__name__)
DRIVER = "tfos:driver"  # attribute of a trial: the process that runs it
ERROR = "error"  # attribute of a trial that has failed
RETRY_OF = "tfos:retry_of"  # attribute of a trial: the number of the one that it repeats


def mark(trial: "Trial") -> None:
    """Note in the storage that this process runs a trial."""
    trial.set_user_attr(DRIVER, _own_process())


def end_leftovers(study: "Study") -> int:
    """Mark trials as failed whose driver ended while they ran, and queue their parameters again, once; return how many.

    Those of drivers on other hosts or in other containers are left to Optuna's heartbeat, if the storage has one:
    whether these drivers run is unknown here.
    """
    import warnings

    import optuna
    from optuna.trial import TrialState

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        optuna.storages.fail_stale_trials(study)  # does nothing without a heartbeat
    found = [each for each in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)) if _is_left(each)]
    for each in found:
        study._storage.set_trial_user_attr(each._trial_id, ERROR, "the driver's process ended while it ran")
        study.tell(each.number, state=TrialState.FAIL, skip_if_finished=True)
        if each.params and RETRY_OF not in each.user_attrs:
            study.enqueue_trial(each.params, user_attrs={RETRY_OF: each.number})
    if found:
        numbers = ", ".join(str(each.number) for each in found)
        text = "trials %s of study %r were left by a driver that has ended: marked as failed, their parameters queued"
        CONSOLE.log(_log, logging.WARNING, text, numbers, study.study_name)
    return len(found)


def _is_left(trial: "FrozenTrial") -> bool:
    """Whether a search of this package has started a trial, in a process of this host that has ended."""
    driver, own = trial.user_attrs.get(DRIVER), _own_process()
    if not isinstance(driver, dict) or any(driver.get(name) != own[name] for name in ("host", "pids")):
        return False
    try:
        return bool(_process(int(driver["pid"])) != driver)
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False


def _own_process() -> dict[str, Any]:
    return _process(os.getpid())


def _process(pid: int) -> dict[str, Any]:
    """Return what identifies a process; a later one with the same number has another start.

    Containers may have a host's name in common and have equal pids, each in a namespace of its own; the namespace of
    processes outside of containers is the same after the host has started again.
    """
    namespace = Path("/proc/self/ns/pid")
    pids = str(namespace.readlink()) if namespace.exists() else ""
    return {
        "host": platform.node(),
        "pids": pids,
        "pid": pid,
        "started": round(psutil.Process(pid).create_time(), 1),
    }

"""Which GPUs of a host a process may take."""

import random
import time
from collections.abc import Sequence

from tensorflowonspark.errors import EnvironmentNotReady, SpecError
from tensorflowonspark.task.gpus import all_gpus, free_gpus

__all__ = ["AS_LIST", "AS_STRING", "MAX_RETRIES", "get_gpus", "is_gpu_available", "take"]

AS_STRING = "string"
AS_LIST = "list"
MAX_RETRIES = 3

_PAUSE_SECONDS = 5  # what used a GPU is often a process of the last job, which is just ending


def is_gpu_available() -> bool:
    """Return whether this host has a GPU, used or not, by ``nvidia-smi``."""
    return bool(all_gpus())


def get_gpus(num_gpu: int = 1, worker_index: int = -1, format: str = AS_STRING) -> str | list[str]:  # noqa: A002
    """Return the indices of free GPUs of this host; wait up to `MAX_RETRIES` times for some to become free.

    Parameters
    ----------
    num_gpu : int
        How many.
    worker_index : int
        The position among the processes of this host that take as many, from 0. Each position has its own GPUs, counted
        over all and not over the free ones: which are free depends on who has come first. By default any will do.
    format : {"string", "list"}
        ``"0,1"`` as in ``CUDA_VISIBLE_DEVICES``, or ``["0", "1"]``.

    Raises
    ------
    EnvironmentNotReady
        If there are not so many, or they stay in use.
    SpecError
        If `format` is neither.
    """
    if format not in (AS_STRING, AS_LIST):
        raise SpecError(f"format={format!r}: expected {AS_STRING!r} or {AS_LIST!r}")
    gpus = all_gpus()
    if worker_index < 0:
        found = take(num_gpu, random.sample(gpus, len(gpus)))  # others that look at the same time take others
    else:
        found = take(num_gpu, gpus[worker_index * num_gpu :][:num_gpu], f"worker_index={worker_index}")
    return found if format == AS_LIST else ",".join(found)


def take(num_gpu: int, own: Sequence[str], whose: str = "") -> list[str]:
    """Return the first free ones of some GPUs.

    Parameters
    ----------
    num_gpu : int
        How many.
    own : sequence of str
        The indices of those that nobody else is to take.
    whose : str
        Whose these are, if they are not all of the host.

    Raises
    ------
    EnvironmentNotReady
        If there are not so many, or they stay in use.
    """
    free: set[str] = set()
    for attempt in range(MAX_RETRIES if len(own) >= num_gpu else 1):
        if attempt:
            time.sleep(_PAUSE_SECONDS)
        free = set(free_gpus())
        found = [gpu for gpu in own if gpu in free]
        if len(found) >= num_gpu:
            return sorted(found[:num_gpu], key=lambda gpu: (len(gpu), gpu))
    of_own = f", of which {_named(own)} are for {whose}" if whose else ""
    raise EnvironmentNotReady(
        f"{num_gpu} free GPUs are wanted, and this host has {len(all_gpus())}{of_own}; free are {_named(sorted(free))} "
        "(nvidia-smi shows what uses the others): ask for fewer, run fewer nodes on a host, or let Spark give GPUs to "
        "tasks (spark.task.resource.gpu.amount)"
    )


def _named(gpus: Sequence[str]) -> str:
    return ", ".join(gpus) or "none"

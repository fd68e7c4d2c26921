"""Free GPUs of a host."""

import random
import time
from collections.abc import Sequence

from tensorflowonspark.errors import RequirementError, SpecError
from tensorflowonspark.task.gpus import all_gpus, free_gpus

__all__ = ["AS_LIST", "AS_STRING", "MAX_RETRIES", "get_gpus", "is_gpu_available", "take"]

AS_STRING = "string"
AS_LIST = "list"
MAX_RETRIES = 3  # as in 2.x, whose programs may read it

_PAUSE_SECONDS = 5  # a busy GPU is often used by a process of the last job that is just ending


def is_gpu_available() -> bool:
    """Return whether ``nvidia-smi`` lists a GPU on this host, free or busy."""
    return bool(all_gpus())


def get_gpus(num_gpu: int = 1, worker_index: int = -1, format: str = AS_STRING) -> str | list[str]:  # noqa: A002
    """Return the indices of free GPUs of this host; wait up to `MAX_RETRIES` times for some to become free.

    Parameters
    ----------
    num_gpu : int
        Number of GPUs.
    worker_index : int
        The position, from 0, among the processes of this host that each take `num_gpu` GPUs. Each position has its own
        GPUs, counted over all and not over the free ones, since these depend on the order of the processes. -1 takes
        any GPUs.
    format : {"string", "list"}
        ``"0,1"`` as in ``CUDA_VISIBLE_DEVICES``, or ``["0", "1"]``.

    Returns
    -------
    str or list of str
        The indices.

    Raises
    ------
    RequirementError
        If the host has too few GPUs, or too few become free.
    SpecError
        If `format` is neither.
    """
    if format not in (AS_STRING, AS_LIST):
        raise SpecError(f"format={format!r}: expected {AS_STRING!r} or {AS_LIST!r}")
    gpus = all_gpus()
    if worker_index < 0:
        found = take(num_gpu, random.sample(gpus, len(gpus)))  # concurrent processes take different ones
    else:
        found = take(num_gpu, gpus[worker_index * num_gpu :][:num_gpu], f"worker_index={worker_index}")
    return found if format == AS_LIST else ",".join(found)


def take(num_gpu: int, own: Sequence[str], whose: str = "") -> list[str]:
    """Return the first free GPUs of some.

    Parameters
    ----------
    num_gpu : int
        Number of GPUs.
    own : sequence of str
        The indices to choose from.
    whose : str
        The owner of these GPUs, if they are not all of the host, for the error message.

    Raises
    ------
    RequirementError
        If the host has too few GPUs, or too few become free.
    """
    free: set[str] = set()
    for attempt in range(MAX_RETRIES if len(own) >= num_gpu else 1):
        if attempt:
            time.sleep(_PAUSE_SECONDS)
        free = set(free_gpus())
        found = [gpu for gpu in own if gpu in free]
        if len(found) >= num_gpu:
            return sorted(found[:num_gpu], key=lambda gpu: (len(gpu), gpu))
    share = f", of which {_named(own)} are for {whose}" if whose else ""
    raise RequirementError(
        f"{num_gpu} free GPUs are wanted, and this host has {len(all_gpus())}{share}; free are {_named(sorted(free))} "
        "(nvidia-smi shows what uses the others): ask for fewer, run fewer nodes on a host, or let Spark give GPUs to "
        "tasks (spark.task.resource.gpu.amount)"
    )


def _named(gpus: Sequence[str]) -> str:
    return ", ".join(gpus) or "none"

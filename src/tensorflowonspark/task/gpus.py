"""GPU assignment: those that Spark gave to the task, or those that no process uses."""

import csv
import subprocess
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

__all__ = ["all_gpus", "divide", "free_gpus", "task_gpus"]

_NVIDIA_SMI_SECONDS = 10


def task_gpus(resources: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the addresses of the GPUs for this task.

    Parameters
    ----------
    resources : mapping
        ``TaskContext.resources()``. Where Spark's resource scheduling knows no GPUs, ``nvidia-smi`` tells those of the
        host on which no process computes.
    """
    if "gpu" in resources:
        return tuple(resources["gpu"].addresses)
    return free_gpus()


def all_gpus() -> tuple[str, ...]:
    """Return the indices of this host's GPUs, by ``nvidia-smi``; none where there is no such."""
    return tuple(row[0] for row in _nvidia_smi("--query-gpu=index"))


def free_gpus() -> tuple[str, ...]:
    """Return the indices of this host's GPUs that run no process, by ``nvidia-smi``; none where there is no such."""
    gpus = _nvidia_smi("--query-gpu=index,uuid")
    busy = {row[0] for row in _nvidia_smi("--query-compute-apps=gpu_uuid")}
    return tuple(index for index, uuid in gpus if uuid not in busy)


def _nvidia_smi(query: str) -> list[list[str]]:
    try:
        answer = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader"],  # noqa: S607 - wherever the host has it
            capture_output=True,
            text=True,
            timeout=_NVIDIA_SMI_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [[cell.strip() for cell in row] for row in csv.reader(StringIO(answer.stdout)) if row]


def divide(nodes: Sequence[tuple[str, tuple[str, ...]]]) -> list[tuple[str, ...]]:
    """Return each node's GPUs, so that no two nodes of a host share one where there are enough.

    Parameters
    ----------
    nodes : sequence of (host, GPUs)
        What each node was offered. Offers on one host that don't overlap are left as they are; those that do (each
        node was shown all free GPUs, or Spark gave fractions of them) are put together and divided evenly.

    Examples
    --------
    >>> divide([("a", ("0", "1")), ("a", ("0", "1")), ("b", ("0",))])
    [('0',), ('1',), ('0',)]
    """
    result: list[tuple[str, ...]] = [()] * len(nodes)
    for host in {host for host, _ in nodes}:
        here = [number for number, (each, offer) in enumerate(nodes) if each == host and offer]
        offers = [nodes[number][1] for number in here]
        union = sorted({gpu for offer in offers for gpu in offer}, key=lambda gpu: (len(gpu), gpu))
        overlap = sum(map(len, offers)) > len(union)
        for place, number in enumerate(here):
            if not overlap:
                result[number] = offers[place]
            elif len(union) >= len(here):
                result[number] = tuple(union[place :: len(here)])
            else:
                result[number] = (union[place % len(union)],)
    return result

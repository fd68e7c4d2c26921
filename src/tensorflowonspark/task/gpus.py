"""GPUs of a task: those that Spark has assigned, or those that no process uses."""

import csv
import subprocess
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

_NVIDIA_SMI_SECONDS = 10


def task_gpus(resources: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the addresses of the GPUs for this task.

    The resources are ``TaskContext.resources()``. If Spark does not schedule GPUs, the result is the GPUs of the host
    without a process, by ``nvidia-smi``.
    """
    if "gpu" in resources:
        return tuple(resources["gpu"].addresses)
    return free_gpus()


def all_gpus() -> tuple[str, ...]:
    """Return the indices of this host's GPUs, by ``nvidia-smi``; none without that program."""
    return tuple(row[0] for row in _nvidia_smi("--query-gpu=index"))


def gpu_names() -> tuple[str, ...]:
    """Return the product names of this host's GPUs, by ``nvidia-smi``; none without that program."""
    return tuple(row[0] for row in _nvidia_smi("--query-gpu=name"))


def free_gpus() -> tuple[str, ...]:
    """Return the indices of this host's GPUs that run no process, by ``nvidia-smi``; none without that program."""
    gpus = _nvidia_smi("--query-gpu=index,uuid")
    busy = {row[0] for row in _nvidia_smi("--query-compute-apps=gpu_uuid")}
    return tuple(index for index, uuid in gpus if uuid not in busy)


def _nvidia_smi(query: str) -> list[list[str]]:
    try:
        result = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader"],  # noqa: S607 - found by PATH
            capture_output=True,
            text=True,
            timeout=_NVIDIA_SMI_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [[cell.strip() for cell in row] for row in csv.reader(StringIO(result.stdout)) if row]


def divide(nodes: Sequence[tuple[str, tuple[str, ...]]]) -> list[tuple[str, ...]]:
    """Return each node's GPUs; two nodes of a host share one only if it has too few.

    Each node has its host and the GPUs offered to it. Offers on one host that do not overlap are unchanged. Offers that
    overlap (each node has found all free GPUs, or Spark has assigned fractions of GPUs) are united and divided evenly.

    Examples
    --------
    >>> divide([("a", ("0", "1")), ("a", ("0", "1")), ("b", ("0",))])
    [('0',), ('1',), ('0',)]
    """
    result: list[tuple[str, ...]] = [()] * len(nodes)
    for host in {host for host, _ in nodes}:
        local = [number for number, (each, offer) in enumerate(nodes) if each == host and offer]
        offers = [nodes[number][1] for number in local]
        union = sorted({gpu for offer in offers for gpu in offer}, key=lambda gpu: (len(gpu), gpu))
        overlap = sum(map(len, offers)) > len(union)
        for position, number in enumerate(local):
            if not overlap:
                result[number] = offers[position]
            elif len(union) >= len(local):
                result[number] = tuple(union[position :: len(local)])
            else:
                result[number] = (union[position % len(union)],)
    return result

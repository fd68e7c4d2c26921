"""The driver's pod of a ``tfos run`` on Kubernetes: its state, and its end where no driver can end it."""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["delete_driver", "is_pending"]

_SECONDS = 60.0  # for one command
_PHASE = re.compile(r"\bphase: (\w+)")


def is_pending(lines: Sequence[str]) -> bool:
    """Return whether a pod waits for a host or its image: there is no driver yet that can be asked for an end.

    Parameters
    ----------
    lines : sequence of str
        The last lines of spark-submit, which reports the state every second.

    Examples
    --------
    >>> is_pending(["Application status for spark-1 (phase: Pending)", "phase: Running"])
    False
    """
    phases = _PHASE.findall("".join(lines))
    return phases[-1:] == ["Pending"]


def delete_driver(submit: Sequence[str], submission: str) -> None:
    """Delete a driver's pod, and with it those of its executors.

    Parameters
    ----------
    submit : sequence of str
        The arguments of spark-submit.
    submission : str
        The namespace and the pod, as in ``training:digits-driver``; nothing is done if it is empty.
    """
    from pyspark.find_spark_home import _find_spark_home

    if not submission:
        return
    command = [str(Path(_find_spark_home(), "bin", "spark-submit")), *submit, "--kill", submission]
    try:
        done = subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            start_new_session=True,  # a signal for this command's process group is not for it
        )
        problem = done.stdout.strip().rpartition("\n")[2] if done.returncode else ""
    except subprocess.TimeoutExpired:
        problem = f"no answer within {_SECONDS:.0f} s"
    namespace, _, pod = submission.partition(":")
    result = f"kubectl delete pod -n {namespace} {pod}: {problem}" if problem else f"{submission}: deleted"
    print(result, file=sys.stderr)

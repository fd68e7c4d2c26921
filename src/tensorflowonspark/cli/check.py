"""``tfos check``: versions and settings of this machine, and of a cluster's executors."""

import argparse
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from tensorflowonspark.cli.signals import ended_by_signals
from tensorflowonspark.driver.preflight import examine_environment
from tensorflowonspark.driver.spark.spark_names import python_problems
from tensorflowonspark.errors import RequirementError
from tensorflowonspark.keras.wheels import wheels_of
from tensorflowonspark.task.environment import ExecutorEnvironment, own_environment
from tensorflowonspark.task.fabric import Fabric, find_fabric

_MEBIBYTE, _GIBIBYTE = 1 << 20, 1 << 30
_DYNAMIC = (
    "on: Spark starts executors when tasks need them, so these are not all; over Spark Connect a cluster needs "
    "spark.dynamicAllocation.enabled=false"
)
_STOPS = "Spark's application is stopped; another signal ends this command without that"
_UNLIMITED = 1 << 40  # open files: more than any host has


@dataclass
class CheckReport:
    """What a check has found."""

    lines: list[str] = field(default_factory=list)  # versions and executors
    problems: list[str] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)  # of the Spark application, if there was one
    hosts: list[str] = field(default_factory=list)  # names and addresses of executors


def add_to(commands: Any) -> None:
    """Add the subcommand to those of a parser."""
    parser = commands.add_parser(
        "check",
        help="check that this machine can run a driver and nodes, and the executors of a cluster",
        description="Print the versions of Python, Java and the packages, or one line for each problem. With --master "
        "or another option of Spark, start an application and report what its executors have. The exit code is 1 if "
        "there is a problem; 69 if there is no executor.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--gpu",
        action="store_true",
        help="also what connects GPUs: InfiniBand, the limit of locked memory, and what NCCL chooses",
    )
    parser.add_argument(
        "--ports",
        metavar="FIRST-LAST",
        help="the ports of the nodes, as of tfos run --ports: each executor tries to connect to the others at these",
    )
    try:
        from tensorflowonspark.cli.spark import add_spark_options
    except ModuleNotFoundError:  # which is reported; until it is there, the check is of this machine alone
        pass
    else:
        add_spark_options(parser)
    parser.set_defaults(run=_check, parser=parser)


def _check(options: argparse.Namespace) -> int:
    found = check(options)
    if found.lines:
        print("\n".join(found.lines))
    if found.problems:
        raise RequirementError("\n".join(found.problems))
    return 0


def check(options: argparse.Namespace) -> CheckReport:
    """Return the report on this machine and, if the command line has an option of Spark, on the executors.

    A cluster without executors is a `SlotsError`.
    """
    found, problems = examine_environment()
    wheels = [name for name in wheels_of("tensorflow") if name != "tensorflow"]
    if wheels and "tensorflow" in found:
        found["tensorflow"] += f" ({', '.join(wheels)})"
    with_cluster = _names_spark(options) and {"pyspark", "java"} <= set(found)
    lines = [f"{name:20}{version}" for name, version in found.items()] if with_cluster or not problems else []
    report = CheckReport(lines, problems)
    if "pyspark" in found:
        report.problems += python_problems()
    if with_cluster:
        _check_cluster(options, report)
        return report
    if {"pyspark", "tensorflow"} <= set(found) and not problems:
        own = ExecutorEnvironment.of(own_environment())
        report.problems += _own_problems(own, report.problems)
        report.lines += [f"{'note':20}{note}" for note in own.notes]
    if getattr(options, "gpu", False):
        from tensorflowonspark.driver.executor_checks import fabric_problems

        fabric = find_fabric()
        report.lines += _fabric_lines([("this machine", fabric)])
        report.problems += [f"this machine: {problem}" for problem in fabric_problems(fabric)]
    return report


def _own_problems(own: ExecutorEnvironment, known: Sequence[str]) -> list[str]:
    """Return a line for each package that can't be imported here, and for each other problem that is not known yet."""
    unfit = [f"{package} can't be imported: {error}" for package, error in own.errors.items()]
    return [f"this machine: {problem}" for problem in (*unfit, *own.problems) if problem not in known]


def _names_spark(options: argparse.Namespace) -> bool:
    if not hasattr(options, "conf"):
        return False
    from tensorflowonspark.cli.spark import names_spark

    return names_spark(options)


def _check_cluster(options: argparse.Namespace, report: CheckReport) -> None:
    """Add the executors to a report."""
    from tensorflowonspark.cli.spark import start_session, stop_session, submit_arguments
    from tensorflowonspark.driver.executor_checks import closed_between, examine_executors, named_hosts, problems_of
    from tensorflowonspark.driver.spark.resources import allocates_dynamically, is_local, unseen_executors
    from tensorflowonspark.driver.spark.spark_names import jvm_problems

    with ThreadPoolExecutor(1) as background, ended_by_signals(_STOPS) as install:
        importing = background.submit(own_environment)  # takes as long as Spark's start
        submit = submit_arguments(options, "tfos check", os.cpu_count() or 1)
        # A speculative copy of the task that examines an executor runs on another one, and ends first.
        spark = start_session([*submit, "--conf", "spark.speculation=false"])
        try:
            install()  # again: Spark has a handler of SIGINT
            context = spark.sparkContext
            report.settings = dict(context.getConf().getAll())
            report.lines.append(f"{'Spark':20}{spark.version} on {context.master}, {context.applicationId}")
            if not is_local(context.master):
                report.lines.append(f"{'not in the table':20}{unseen_executors(context)}")
            if allocates_dynamically(context):
                report.lines.append(f"{'dynamic allocation':20}{_DYNAMIC}")
            report.problems += jvm_problems(spark)
            executors = examine_executors(spark, fabric=getattr(options, "gpu", False))
            if not allocates_dynamically(context):
                report.problems += closed_between(spark, getattr(options, "ports", None))
        except RequirementError as error:
            report.problems.append(str(error))
            return
        finally:
            stop_session(spark)
        own = ExecutorEnvironment.of(importing.result())
    report.hosts = [name for each in executors for name in (each.host, each.address)]
    report.lines += _table(executors)
    report.lines += _fabric_lines([(each.host, each.fabric) for each in executors if each.fabric is not None])
    noted: dict[str, list[str]] = {}
    for each in executors:
        for note in each.notes:
            noted.setdefault(note, []).append(each.host)
    notes = [f"{named_hosts(hosts)}: {note}" for note, hosts in noted.items()]
    report.lines += ["", *notes] if notes else []
    report.problems += _own_problems(own, report.problems)
    report.problems += problems_of(own, executors)


def _table(executors: Sequence[ExecutorEnvironment]) -> list[str]:
    """Return the lines of a table with a row for each executor."""
    facts = ["GPUs", "slots", "/dev/shm", "open files", "driver"]  # noqa: S108 - a title
    head = ["executor", "Python", "TensorFlow", "Keras", "pyarrow", "tfos", *facts]
    rows = [
        [
            each.host if each.host == each.address or not each.address else f"{each.host} ({each.address})",
            each.python,
            *(each.versions.get(name, "missing") for name in ("tensorflow", "keras", "pyarrow", "tensorflowonspark")),
            str(each.gpus),
            str(each.slots),
            _size(each.shared_memory),
            "no limit" if each.open_files < 0 or each.open_files > _UNLIMITED else str(each.open_files),
            "out of reach" if each.unreachable else "reached",
        ]
        for each in executors
    ]
    return _aligned([head, *rows])


def _fabric_lines(fabrics: Sequence[tuple[str, Fabric]]) -> list[str]:
    """Return the lines of a table of what connects the GPUs of each executor."""
    if not fabrics:
        return []
    rows = [
        [
            name,
            _counted(fabric.gpus) or "none",
            ", ".join(f"{each.device}:{each.port} {each.link} {each.state} {each.rate}" for each in fabric.ports)
            or "none",
            "no limit" if fabric.locked_memory < 0 else _size(fabric.locked_memory),
            _nccl(fabric),
        ]
        for name, fabric in fabrics
    ]
    return _aligned([["executor", "GPUs", "InfiniBand", "locked memory", "NCCL"], *rows])


def _counted(names: Sequence[str]) -> str:
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def _nccl(fabric: Fabric) -> str:
    choice = fabric.nccl
    if choice is None:
        return f"not asked: there is no {'TensorFlow' if fabric.gpus else 'GPU'}"
    if choice.problem:
        return "failed"
    between = f"between hosts {choice.network or 'unknown'}"
    if choice.devices:
        between += f" ({', '.join(choice.devices)})"
    if choice.gpudirect is not None:
        between += " with GPUDirect" if choice.gpudirect else " without GPUDirect"
    within = f"between GPUs {', '.join(choice.paths)}" if choice.paths else ""
    return "; ".join(filter(None, [choice.version, between, within]))


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return an empty line and the lines of a table."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["", *("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)]


def _size(size: int | None) -> str:
    if size is None:
        return "none"
    if size >= _GIBIBYTE:
        return f"{size / _GIBIBYTE:.1f} GiB"
    return f"{size // _MEBIBYTE} MiB" if size >= _MEBIBYTE else f"{size // 1024} KiB"

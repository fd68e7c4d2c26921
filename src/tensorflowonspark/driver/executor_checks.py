"""Preflight checks of the executors: one small Spark job, and the problems that it shows."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from tensorflowonspark import task
from tensorflowonspark.driver.preflight import pyarrow_problem
from tensorflowonspark.driver.spark.dynamic import occupy_slots
from tensorflowonspark.driver.spark.jobs import SparkJob, first_cause
from tensorflowonspark.driver.spark.resources import (
    allocates_dynamically,
    count_slots,
    driver_host,
    find_slots,
    listen,
    unseen_executors,
)
from tensorflowonspark.errors import RequirementError, SlotsError
from tensorflowonspark.settings import port_range
from tensorflowonspark.task.environment import PACKAGES, ExecutorEnvironment, report_environment, report_unreached
from tensorflowonspark.task.fabric import Fabric
from tensorflowonspark.transport import MTU_ADVICE, ONLY_SMALL, new_credentials

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

_EXECUTOR_SECONDS = 120.0  # for executors that the cluster manager was asked for
_CANCEL_SECONDS = 10.0
_MANY = 1 << 20  # slots: more than there are
_FEWEST_FILES = 1024  # that TensorFlow, its connections and the files of a checkpoint need
_SHARED_BYTES = 256 << 20  # NCCL's buffers for several GPUs; a container has 64 MiB by default
_LOCKED_BYTES = 1 << 30  # RDMA locks the buffers of all connections
_HOSTS_NAMED = 3
_INSTALL = "install it there, set PYSPARK_PYTHON to a Python that has it, or ship an environment with --archives"


def examine_executors(spark: "SparkSession", *, fabric: bool = False) -> list[ExecutorEnvironment]:
    """Return the environment of each executor, by host, from a job of one task for each slot.

    The session must run nothing else. Without an executor within two minutes it raises `SlotsError`; where Spark can't
    run a Python task, `RequirementError`. With `fabric` it finds what connects GPUs.
    """
    context = spark.sparkContext
    slots = _slots(spark)
    server, address = listen(driver_host(context), new_credentials(), lambda channel: channel.close())
    try:
        with _shipped_by_value():
            tasks = context.parallelize(range(max(slots, 1)), max(slots, 1))
            rows = tasks.mapPartitions(partial(report_environment, address, fabric)).collect()
    except Exception as error:
        raise RequirementError(_job_problem(error)) from error
    finally:
        server.close()
    slots_of = Counter(key for key, _ in rows)
    found = {key: ExecutorEnvironment.of(fields, slots_of[key]) for key, fields in rows if fields is not None}
    if missing := slots_of.keys() - found.keys():
        hosts = named_hosts(sorted(key.split()[0] for key in missing))
        raise RequirementError(f"{hosts}: not examined, each task waited for another one: run tfos check again")
    return sorted(found.values(), key=lambda each: (each.host, each.address))


def closed_between(spark: "SparkSession", ports: str | None = None) -> list[str]:
    """Return a line for each port of an executor to which another one can't connect, or send large packets.

    The session must run nothing else, without dynamic allocation. Of the ports, in the form of `port_range`, the first
    and the last free one are tried. Where Spark can't run the tasks it raises `RequirementError`.
    """
    port_range(ports)
    slots = count_slots(spark.sparkContext)
    if slots < 2:  # noqa: PLR2004 - there is no other
        return []
    tasks = spark.sparkContext.parallelize(range(slots), slots).barrier()
    try:
        with _shipped_by_value():
            rows = tasks.mapPartitions(partial(report_unreached, ports or "")).collect()
    except Exception as error:
        raise RequirementError(_job_problem(error)) from error
    return [f"{own}: {_unreached(address, why)}" for own, address, why in rows]


def _unreached(address: str, why: str) -> str:
    if why == ONLY_SMALL:
        return f"of what it sends to {address}, where another executor listens, {why}; {MTU_ADVICE}"
    return (
        f"it can't connect to {address}, where another executor listens ({why}): nodes connect to each other; open the "
        "ports between the hosts in firewalls, those of ports=... or all; where hosts have several networks, name the "
        "one that all reach: SPARK_LOCAL_IP on that host, or network_interface"
    )


def _slots(spark: "SparkSession") -> int:
    """Wait until there is an executor; return how many task slots there are."""
    context = spark.sparkContext
    asking = None
    if allocates_dynamically(context):  # executors come when there are tasks
        occupy = partial(occupy_slots, spark, 1, None, _EXECUTOR_SECONDS)
        asking = SparkJob(spark, "tfos check: request an executor", occupy, lambda: None)
    try:
        find_slots(context, 1, 1 if asking else _MANY, _EXECUTOR_SECONDS, had=1)
        return count_slots(context)
    except SlotsError as error:
        raise SlotsError(
            1,
            0,
            f"no executor has registered within {_EXECUTOR_SECONDS:.0f} s: look at the queue and the free resources of "
            f"the cluster manager (tfos run waits --start-timeout for them); {unseen_executors(context)}",
        ) from error
    finally:
        if asking:
            asking.cancel()
            asking.wait(_CANCEL_SECONDS)


@contextmanager
def _shipped_by_value() -> "Iterator[None]":
    """Have Spark ship the functions of `tensorflowonspark.task` themselves, not their names."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(task)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(task)


def _job_problem(error: Exception) -> str:
    text = str(error)
    cause = first_cause(error)
    if "PYTHON_VERSION_MISMATCH" in text:
        return f"{cause}: set PYSPARK_PYTHON to the same version of Python on the driver and the executors"
    if "Cannot run program" in text:
        return f"an executor can't start Python ({cause}): set PYSPARK_PYTHON to a Python that exists on the executors"
    return f"Spark could not run a Python task on the executors: {cause}"


def problems_of(own: ExecutorEnvironment, executors: Sequence[ExecutorEnvironment]) -> list[str]:
    """Return a line for each problem of the executors, with the hosts that have it and what to do.

    Examples
    --------
    >>> here = ExecutorEnvironment("edge", "", "3.12.1", {"tensorflow": "2.21.0"}, {}, 0, None, 1 << 20, "")
    >>> there = ExecutorEnvironment("h1", "", "3.12.1", {"tensorflow": "2.20.0"}, {}, 0, None, 1 << 20, "")
    >>> problems_of(here, [there])
    ['h1: tensorflow 2.20.0, and on this machine 2.21.0: install one version on both']
    """
    hosts: dict[str, list[str]] = {}
    for executor in executors:
        for problem in (*_problems(own, executor), *_other_backend(executors[0], executor)):
            hosts.setdefault(problem, []).append(executor.host)
    return [f"{named_hosts(of)}: {problem}" for problem, of in hosts.items()]


def _problems(own: ExecutorEnvironment, executor: ExecutorEnvironment) -> "Iterator[str]":
    clash = pyarrow_problem(executor.versions.get("pyarrow", "0"), executor.versions.get("numpy", "2"))
    if clash:
        yield clash
    for package, error in executor.errors.items():
        yield f"{package} can't be imported ({error}): {_INSTALL}"
    yield from executor.problems
    yield from _different(own.versions, executor.versions)
    if executor.unreachable == ONLY_SMALL:
        yield f"of what it sends to the driver, {executor.unreachable}; {MTU_ADVICE}"
    elif executor.unreachable:
        yield (
            f"it can't connect to the driver ({executor.unreachable}): open the driver's ports in firewalls, and set "
            "spark.driver.host or TFOS_SERVER_HOST to an address that executors reach (TFOS_SERVER_PORT: the port)"
        )
    if executor.gpus > 1 and (executor.shared_memory or 0) < _SHARED_BYTES:
        yield (
            f"/dev/shm has {(executor.shared_memory or 0) >> 20} MiB, too few for {executor.gpus} GPUs, between which "  # noqa: S108 - its size was read
            "NCCL passes data through it: mount a larger one (on Kubernetes an emptyDir of medium Memory)"
        )
    if 0 <= executor.open_files < _FEWEST_FILES:
        yield f"a process may open {executor.open_files} files: raise the hard limit (ulimit -Hn) to 4096 or more"
    if executor.fabric is not None:
        yield from fabric_problems(executor.fabric)


def fabric_problems(fabric: Fabric) -> "Iterator[str]":
    """Yield a line for each problem of what connects a host's GPUs, with what to do."""
    active = [each for each in fabric.ports if each.is_active]
    for each in fabric.ports:
        if not each.is_active:
            yield f"port {each.port} of {each.device} is {each.state}: see ibstat, or leave it out with NCCL_IB_HCA"
    if active and 0 <= fabric.locked_memory < _LOCKED_BYTES:
        yield (
            f"a process may lock {fabric.locked_memory >> 10} KiB of memory, and RDMA locks its buffers: raise the "
            "limit (ulimit -l) to unlimited for the user of the executors, in a container with --ulimit memlock=-1"
        )
    nccl = fabric.nccl
    if nccl is None:
        return
    if nccl.problem:
        yield f"NCCL can't sum a small array over the GPUs ({nccl.problem}): a training with NCCL will fail too"
    elif active and nccl.network == "Socket":
        yield (
            f"NCCL uses sockets ({', '.join(nccl.devices)}) although {active[0].device} is active: see NCCL_IB_DISABLE "
            "and NCCL_IB_HCA, and whether the container has /dev/infiniband and libibverbs"
        )


def _other_backend(first: ExecutorEnvironment, executor: ExecutorEnvironment) -> "Iterator[str]":
    """Yield a line if an executor's Keras has another backend than that of the first executor."""
    if first.backend and executor.backend and executor.backend != first.backend:
        yield (
            f"Keras has the backend {executor.backend} (by KERAS_BACKEND or ~/.keras/keras.json), and {first.backend} "
            f'on {first.host}: workers of one cluster need the same, set it with env={{"KERAS_BACKEND": ...}}'
        )


def _different(own: Mapping[str, str], other: Mapping[str, str]) -> "Iterator[str]":
    for package in PACKAGES:
        here, there = own.get(package), other.get(package)
        if package == "numpy" or here is None or there is None or here == there:
            continue  # a NumPy that does not fit is an error of the import
        if package == "tensorflowonspark" and there.split(".")[0] != here.split(".")[0]:
            yield f"TensorFlowOnSpark {there} is installed in the place of this release ({here}): uninstall it there"
        else:
            yield f"{package} {there}, and on this machine {here}: install one version on both"


def named_hosts(hosts: Iterable[str]) -> str:
    """Return the names of hosts as text: the first three, and how many more there are."""
    names = list(dict.fromkeys(hosts))
    more = len(names) - _HOSTS_NAMED
    return ", ".join(names[:_HOSTS_NAMED]) + (f" and {more} more" if more > 0 else "")

"""The private names of Spark that the driver relies on, in Python and in the JVM, and what needs each.

No public API has what these give. At a start the driver uses them and explains the error of one that is missing
(`explained`), which costs nothing; ``tfos check`` tests all of them.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tensorflowonspark.errors import RequirementError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TESTED = "pyspark>=3.5,<4.4"  # the releases with which the tests have run: docs/compatibility.md
SLOTS, DYNAMIC, GPUS = "the number of task slots", "dynamic allocation", "gpus_per_node"
LOST_REASONS = "the reason for the end of an executor"
LOST_HOSTS = "restarts after the loss of a host"
DECOMMISSION = "notices that a host goes"
SENT_MODELS = "transform, which sends a model to the executors"
MANIFEST = "the version of Java in a run's manifest"
HADOOP, OLD_ROWS = "the Hadoop settings of a session", "the rows of a program of 2.x"


@dataclass(frozen=True)
class PythonUse:
    """Names of a module of pyspark, as ``"Class.method"``, and the feature that needs them."""

    module: str
    feature: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class JavaUse:
    """Methods of an object in the JVM, and the feature that needs them."""

    path: str  # of the object: attributes and methods without parameters, from a `SparkSession` on
    feature: str
    methods: tuple[str, ...]


PYTHON = (
    PythonUse("pyspark.cloudpickle", "tfos check of executors", ("register_pickle_by_value",)),
    PythonUse("pyspark.find_spark_home", "tfos run in cluster mode", ("_find_spark_home",)),
    PythonUse("pyspark.java_gateway", "tfos run", ("launch_gateway",)),
    PythonUse("pyspark.sql.pandas.types", "types of columns", ("from_arrow_schema", "to_arrow_type")),
    PythonUse("pyspark.rdd", OLD_ROWS, ("RDD._reserialize",)),
    PythonUse(
        "pyspark.serializers",
        OLD_ROWS,
        ("AutoBatchedSerializer", "BatchedSerializer", "CPickleSerializer", "NoOpSerializer"),
    ),
)
JVM = (
    JavaUse("sparkContext._jsc.sc()", SLOTS, ("maxNumConcurrentTasks", "resourceProfileManager", "statusStore")),
    JavaUse("sparkContext._jsc.sc()", DYNAMIC, ("executorAllocationManager", "getExecutorMemoryStatus", "conf")),
    JavaUse("sparkContext._jsc.sc().resourceProfileManager()", SLOTS, ("defaultResourceProfile",)),
    JavaUse("sparkContext._jsc.sc().resourceProfileManager()", GPUS, ("getEquivalentProfile", "addResourceProfile")),
    JavaUse("sparkContext._jsc.sc().statusStore()", SLOTS, ("executorList",)),
    JavaUse("sparkContext._jsc.sc().statusTracker()", SLOTS, ("getJobIdsForTag",)),
    JavaUse("sparkContext._jsc.sc()", LOST_REASONS, ("schedulerBackend", "statusStore", "conf")),
    JavaUse("sparkContext._jsc.sc().statusStore()", LOST_REASONS, ("executorSummary",)),
    JavaUse("sparkContext._jsc.sc()", LOST_HOSTS, ("schedulerBackend", "statusStore", "killAndReplaceExecutor")),
    JavaUse("sparkContext._jsc.sc().statusStore()", LOST_HOSTS, ("executorList", "executorSummary")),
    JavaUse("sparkContext._jsc.sc()", DECOMMISSION, ("taskScheduler",)),
    JavaUse("sparkContext._jsc.sc().taskScheduler()", DECOMMISSION, ("getExecutorDecommissionState",)),
    JavaUse("_jsparkSession.sessionState()", HADOOP, ("newHadoopConf",)),
    JavaUse("_jsparkSession.sessionState().newHadoopConf()", HADOOP, ("writeXml", "get")),
    JavaUse("_jvm.java.io.StringWriter()", HADOOP, ("toString",)),
    JavaUse("_jvm.java.lang.System", MANIFEST, ("getProperty",)),
)


@contextmanager
def explained(feature: str) -> Iterator[None]:
    """Explain the error of a private name that this version of Spark does not have.

    It is a `RequirementError` that names the feature.
    """
    try:
        yield
    except Exception as error:
        name = _missing_name(error)
        if not name:
            raise
        raise RequirementError(_problem(name, feature)) from error


def python_problems() -> Iterator[str]:
    """Yield a line for each use of a name that the installed pyspark lacks."""
    for use in PYTHON:
        try:
            module: Any = importlib.import_module(use.module)
        except ImportError:
            yield _problem(use.module, use.feature)
            continue
        for name in use.names:
            owner = module
            for part in name.split("."):
                owner = getattr(owner, part, None)
            if owner is None:
                yield _problem(f"{use.module}.{name}", use.feature)


def jvm_problems(spark: "SparkSession") -> Iterator[str]:
    """Yield a line for each use of a name that the JVM of a session lacks."""
    for use in JVM:
        try:
            owner = _object(spark, use.path)
        except Exception as error:
            if not _missing_name(error):
                raise
            yield _problem(f"{type(spark).__name__}.{use.path}", use.feature)
            continue
        names = set(dir(owner))
        for method in use.methods:
            if method not in names:
                yield _problem(f"{owner.getClass().getName()}.{method}", use.feature)


def _object(spark: "SparkSession", path: str) -> Any:
    found: Any = spark
    for part in path.split("."):
        found = getattr(found, part.removesuffix("()"))
        if part.endswith("()"):
            found = found()
    return found


def _missing_name(error: Exception) -> str:
    """Return the name whose absence an error reports; empty if it reports something else."""
    if isinstance(error, AttributeError):
        owner = getattr(error, "obj", None)
        return "" if owner is None else f"{type(owner).__module__}.{type(owner).__name__}.{error.name}"
    if type(error).__module__ == "py4j.protocol" and "does not exist" in str(error):
        line = next((line for line in str(error).splitlines() if "does not exist" in line), "")
        return line.partition("Method ")[2].partition("(")[0] or line
    return ""


def _problem(name: str, feature: str) -> str:
    import pyspark

    return (
        f'Spark {pyspark.__version__} has no {name}: {feature} needs it; install "{TESTED}" here and use a cluster of '
        "this version, or a release of TensorFlowOnSpark for this version"
    )

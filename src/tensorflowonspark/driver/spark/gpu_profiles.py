"""GPUs for a cluster's tasks alone: a resource profile of Spark, beside the application's default one."""

from functools import partial
from typing import TYPE_CHECKING, Any

from tensorflowonspark.driver.spark.jobs import first_cause
from tensorflowonspark.driver.spark.resources import allocates_dynamically, is_local
from tensorflowonspark.driver.spark.spark_names import GPUS, explained
from tensorflowonspark.errors import SpecError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.resource import ResourceProfile
    from pyspark.sql import SparkSession

_GPU = "spark.executor.resource.gpu"


def gpu_profile(context: "SparkContext", gpus: int) -> "ResourceProfile":
    """Return the profile of tasks with so many GPUs each, which Spark knows from now on.

    Without dynamic allocation these tasks run on the application's executors, which must have the GPUs. With it, Spark
    starts executors of their own for them.

    An application that can't run such tasks is refused (`SpecError`).
    """
    from pyspark.resource import ExecutorResourceRequests, ResourceProfile, ResourceProfileBuilder

    master, conf = str(context.master), context.getConf()
    asked = partial(SpecError.of, "gpus_per_node", gpus)
    if is_local(master):
        raise asked(
            f": on {master} Spark assigns no GPUs to tasks; leave it out (nodes use the free GPUs of this "
            "machine), or use a master with executors: local-cluster[...], spark://, yarn or k8s://"
        )
    amount = int(conf.get(f"{_GPU}.amount") or 0)
    script, vendor = conf.get(f"{_GPU}.discoveryScript") or "", conf.get(f"{_GPU}.vendor") or ""
    builder = ResourceProfileBuilder().require(_task_requests(int(conf.get("spark.task.cpus") or 1), gpus))
    if allocates_dynamically(context):
        required = {"discoveryScript": script} if master.startswith(("yarn", "k8s://")) else {}
        if master.startswith("k8s://"):
            required["vendor"] = vendor
        unset = [f"{_GPU}.{name}" for name, value in required.items() if not value]
        if unset:
            raise asked(f": Spark needs {' and '.join(unset)} to start executors with GPUs on {master}")
        builder = builder.require(ExecutorResourceRequests().resource("gpu", max(amount, gpus), script, vendor))
    elif amount < gpus:
        has = f"{amount} GPUs" if amount != 1 else "1 GPU"
        raise asked(
            f": each executor of this application has {has}; set {_GPU}.amount={gpus} or more and "
            f"{_GPU}.discoveryScript when the application starts (standalone workers need spark.worker.resource.gpu.*, "
            f"Kubernetes {_GPU}.vendor), or leave it out"
        )
    profile = builder.build
    with explained(GPUS):
        manager = context._jsc.sc().resourceProfileManager()
        known = manager.getEquivalentProfile(profile._java_resource_profile)
    if known.isDefined():  # executors that were started for it are used again
        return ResourceProfile(_java_resource_profile=known.get())
    try:
        manager.addResourceProfile(profile._java_resource_profile)
    except Exception as error:
        raise asked(
            f": Spark {context.version} on {master} does not allow GPUs for some tasks only "
            f"({first_cause(error)}): use Spark 3.5.1 or later, or set spark.task.resource.gpu.amount={gpus} for all "
            "tasks and leave it out"
        ) from error
    return profile


def gpu_profile_of_connect(spark: "SparkSession", gpus: int) -> "ResourceProfile":
    """Return the profile of tasks with so many GPUs each, for a session of Spark Connect.

    A version of Spark that takes no profiles is refused (`SpecError`).
    """
    from pyspark.resource import ResourceProfileBuilder

    if int(str(spark.version).partition(".")[0]) < 4:  # noqa: PLR2004 - a version
        raise SpecError.of(
            "gpus_per_node",
            gpus,
            f": over Spark Connect it needs Spark 4.0 or later, and this is {spark.version}: leave it "
            "out, and set spark.task.resource.gpu.amount for all tasks of the application",
        )
    cpus = int(spark.conf.get("spark.task.cpus", "1") or 1)
    return ResourceProfileBuilder().require(_task_requests(cpus, gpus)).build


def _task_requests(cpus: int, gpus: int) -> Any:
    from pyspark.resource import TaskResourceRequests

    return TaskResourceRequests().cpus(cpus).resource("gpu", gpus)

"""Hosts that do not answer: Spark replaces their executors, which it would take for alive for a minute or more."""

from typing import TYPE_CHECKING

from tensorflowonspark.driver.spark.private_names import LOST_HOSTS, explained

if TYPE_CHECKING:
    from pyspark import SparkContext


def give_up_host(context: "SparkContext", executor: str) -> None:
    """Have Spark replace all executors on the host of one, and run nothing on them any more.

    It is what Spark does itself with an executor that sends no heartbeat for ``spark.network.timeout``
    (``HeartbeatReceiver``): the cluster manager is asked for another one, and what it had stored counts as lost.

    Parameters
    ----------
    context : SparkContext
        The application.
    executor : str
        Spark's id of the executor.
    """
    with explained(LOST_HOSTS):
        scala, jvm = context._jsc.sc(), context._jvm
        backend, store = scala.schedulerBackend(), scala.statusStore()
        host = str(store.executorSummary(executor).hostPort()).rpartition(":")[0]
        present = store.executorList(True)
        for summary in (present.apply(number) for number in range(present.size())):
            if summary.id() != "driver" and str(summary.hostPort()).rpartition(":")[0] == host:
                scala.killAndReplaceExecutor(summary.id())
                where = jvm.scala.Option.apply(host)
                lost = jvm.org.apache.spark.scheduler.ExecutorProcessLost("its host does not answer", where, False)
                backend.removeExecutor(summary.id(), lost)

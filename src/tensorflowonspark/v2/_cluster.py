"""What `TFCluster.run` returns: feeding, inference and shutdown by the names of 2.x."""

import logging
from typing import TYPE_CHECKING, Any

from tensorflowonspark import storage
from tensorflowonspark.driver.cluster import Cluster
from tensorflowonspark.driver.feed.job import node_endpoints
from tensorflowonspark.errors import FeedError, SpecError

from ._inference import answered
from ._mode import InputMode
from ._pickles import pickled_batches
from ._program import Program, renamed
from .reservation import StopSwitch

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext

__all__ = ["TFCluster"]

_log = logging.getLogger(__name__)
_EPOCHS = 10  # if the program says 0
_LOOK_SECONDS = 1.0


class TFCluster:
    """A cluster that `run` has started.

    Attributes
    ----------
    sc : SparkContext
        The application.
    defaultFS, working_dir : str
        Hadoop's default file system, and the driver's working directory.
    num_executors : int
        How many nodes there are.
    nodeRDD : RDD
        Their numbers.
    cluster_id : str
        Tells clusters of an application apart.
    cluster_info : list of dict
        What is known of each node.
    cluster_meta, meta : dict
        How the cluster was made; ``server_addr`` is what `reservation.Client` takes.
    input_mode : int
        See `InputMode`.
    queues : list of str
        The nodes' queues.
    server : StopSwitch
        Is ``done`` when somebody asked for the end of a stream.
    """

    def __init__(self, cluster: Cluster, sc: "SparkContext", input_mode: int, program: Program) -> None:
        self._cluster = cluster
        self.sc = sc
        self.input_mode = input_mode
        self.queues = list(program.queues)
        self._master = program.master
        self.num_executors = len(cluster.spec.roles)
        self.defaultFS = storage.default_fs()
        self.working_dir = program.working_dir
        self.cluster_id = cluster.id
        self.server = StopSwitch(cluster.address)
        self.cluster_meta = {
            "id": self.cluster_id,
            "default_fs": self.defaultFS,
            "working_dir": self.working_dir,
            "num_executors": self.num_executors,
            "server_addr": cluster.address,
        }
        self.meta = self.cluster_meta

    @property
    def nodeRDD(self) -> "RDD[int]":
        return self.sc.parallelize(range(self.num_executors), self.num_executors)

    @property
    def cluster_info(self) -> list[dict[str, Any]]:
        return [self._info(node) for node in self._cluster.nodes]

    def _info(self, node: Any) -> dict[str, Any]:
        url = self.tensorboard_url() if node.role == self._cluster.spec.chief_role else None
        return {
            "executor_id": node.number,
            "host": node.host,
            "job_name": renamed(str(node.role.job), self._master),
            "task_index": node.role.index,
            "port": node.member.port if node.member else 0,
            "tb_pid": 0,
            "tb_port": int(url.rstrip("/").rsplit(":", 1)[1]) if url else 0,
            "addr": None,
            "authkey": None,  # a secret
        }

    def train(self, dataRDD: Any, num_epochs: int = 0, feed_timeout: float = 600, qname: str = "input") -> None:
        """Feed rows to the workers; return when they were taken, or at once for a stream.

        Parameters
        ----------
        dataRDD : RDD, DStream or DataFrame
            Of any Python objects that pickle; of a DataFrame the workers get Rows.
        num_epochs : int
            How often to feed it; 10 times if it is 0.
        feed_timeout : float
            Seconds without any progress after which the feed fails.
        qname : str
            The queue of the nodes.

        Raises
        ------
        FeedError
            If the rows can't be fed.
        NodeError
            If a node failed.
        """
        self._require_feeding("train", qname)
        if num_epochs < 0:
            raise SpecError(f"num_epochs={num_epochs}: expected 0 (which means {_EPOCHS}) or more")
        if hasattr(dataRDD, "foreachRDD"):
            dataRDD.foreachRDD(lambda rdd: self._feed(rdd, feed_timeout, qname))
            return
        rdd = _as_rdd(dataRDD)
        self._feed(self.sc.union([rdd] * (num_epochs or _EPOCHS)), feed_timeout, qname)

    def _feed(self, rdd: "RDD[Any]", feed_timeout: float, qname: str) -> None:
        if self._nobody_reads:
            _log.warning("the programs of all workers have returned: rows that come now are dropped")
            return
        self._cluster.train(pickled_batches(rdd, qname), cache=None, timeout=feed_timeout, independent_workers=True)

    @property
    def _nobody_reads(self) -> bool:
        return all(node.returned for node in self._cluster.fed)

    def inference(self, dataRDD: Any, feed_timeout: float = 600, qname: str = "input") -> "RDD[Any]":
        """Return the RDD of what the programs answer with ``batch_results``: one result for each row, in order.

        It is computed when Spark comes to it, which must be before `shutdown`.

        Parameters
        ----------
        dataRDD : RDD or DataFrame
            What is asked about.
        feed_timeout : float
            Seconds without any progress after which a partition fails.
        qname : str
            The queue of the nodes.
        """
        self._require_feeding("inference", qname)
        targets = node_endpoints(self._cluster.fed, self._cluster.address)
        return answered(_as_rdd(dataRDD), targets, self._cluster.credentials, qname, feed_timeout)

    def _require_feeding(self, verb: str, qname: str) -> None:
        if self.input_mode != InputMode.SPARK:
            raise FeedError(
                f"cluster.{verb} needs input_mode=InputMode.SPARK: with TENSORFLOW programs read their data themselves"
            )
        if qname not in self.queues:
            raise FeedError(f"qname={qname!r}: there is no such queue; TFCluster.run was given queues={self.queues}")

    def shutdown(self, ssc: Any = None, grace_secs: float = 0, timeout: float = 259200) -> None:
        """Wait until the programs of all workers have returned, then end the cluster.

        Parameters
        ----------
        ssc : StreamingContext, optional
            Is waited for first; and stopped, when somebody asks for that by `reservation.Client.request_stop`.
        grace_secs : float
            Not needed any more: what the chief still has to do after its last batch, it is given the time for.
        timeout : float
            Seconds after which all nodes are ended anyway, and the call fails; -1 for none.

        Raises
        ------
        NodeError
            If a node failed since.
        ClusterError
            If the time was over first.
        """
        del grace_secs
        try:
            if ssc is not None:
                self._wait_for_stream(ssc)
            self._cluster.shutdown(None if timeout < 0 else timeout)
        finally:
            self.server.close()

    def _wait_for_stream(self, ssc: Any) -> None:
        while not ssc.awaitTerminationOrTimeout(_LOOK_SECONDS):
            self._cluster.check()
            if self.server.done or self._nobody_reads:
                ssc.stop(stopSparkContext=False, stopGraceFully=True)
                return

    def tensorboard_url(self) -> str | None:
        """Return where TensorBoard answers; None if it was not asked for."""
        return self._cluster.tensorboard_url


def _as_rdd(rows: Any) -> "RDD[Any]":
    found: Any = rows if hasattr(rows, "mapPartitions") and hasattr(rows, "ctx") else getattr(rows, "rdd", None)
    if found is None:
        raise FeedError(
            f"{type(rows).__name__}: expected an RDD, a DataFrame or (for train) a DStream: make one with "
            "sc.parallelize(rows) or spark.createDataFrame(rows)"
        )
    return found

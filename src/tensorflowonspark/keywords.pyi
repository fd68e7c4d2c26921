"""Keywords that several functions take, as typed dicts, which `make keywords` writes."""

from collections.abc import Mapping
import os
from pyspark.sql import DataFrame
from tensorflowonspark.config import RestartPolicy
from tensorflowonspark.driver.feed.job import Start
from typing import Literal
from typing import TypedDict

class ClusterKeywords(TypedDict, total=False):
    """Those of `tensorflowonspark.config.ClusterSettings`."""

    num_workers: int | tuple[int, int]
    num_ps: int
    chief: bool
    evaluator: bool
    tensorboard: str | None
    env: Mapping[str, str] | None
    log_level: str | int
    heartbeat_timeout: float
    restarts: RestartPolicy | int
    start_timeout: float
    ps_on_driver: bool
    warm_nodes: bool
    tls: bool | None
    grace: float
    show: str
    log_dir: str | None
    log_format: Literal['text', 'json']
    dashboard: bool | int
    metrics_port: int | None
    tracking: Literal['auto', 'none']
    gpus_per_node: int | None
    network_interface: str | None

class RunKeywords(ClusterKeywords, total=False):
    """Those of `tensorflowonspark.driver.run.run`."""

    data: DataFrame | None
    validation: DataFrame | str | None
    start: Start
    report: str | os.PathLike[str] | None

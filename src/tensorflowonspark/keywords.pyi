"""Keywords that several functions take, as typed dicts, which `make keywords` writes."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from pyspark.ml.param import Param
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType
from tensorflowonspark.driver.feed.feed_settings import Data
from tensorflowonspark.driver.feed.job import Start
from tensorflowonspark.driver.feed.mixed_frames import Mixed
from tensorflowonspark.ml.model import KerasModel
from tensorflowonspark.ml.params import Invalid
from tensorflowonspark.ml.training_params import Backend
from tensorflowonspark.ml.training_params import Precision
from tensorflowonspark.ml.training_params import Strategy
from tensorflowonspark.ml.training_params import TrainFn
from tensorflowonspark.node.feed.row_window import Window
from tensorflowonspark.restart_policy import RestartPolicy
from tensorflowonspark.settings import Dashboard
from tensorflowonspark.settings import Logs
from tensorflowonspark.settings import Network
from tensorflowonspark.settings import Nodes
from typing import Any
from typing import Literal
from typing import TypedDict
from typing_extensions import Self
import numpy.typing as npt
import os

class ClusterKeywords(TypedDict, total=False):
    """Those of `tensorflowonspark.settings.ClusterSettings`."""
    num_workers: int | tuple[int, int]
    num_ps: int
    chief: bool
    evaluator: bool
    env: Mapping[str, str] | None
    restarts: RestartPolicy | int
    tensorboard: str | None
    logs: str | os.PathLike[str] | Logs | None
    dashboard: bool | int | Dashboard
    network: Network | None
    nodes: Nodes | None

class RunKeywords(ClusterKeywords, total=False):
    """Those of `tensorflowonspark.driver.run.run`."""
    data: DataFrame | Mixed | Data | None

class FeedKeywords(TypedDict, total=False):
    """Those of `tensorflowonspark.driver.feed.feed_settings.FeedSettings`."""
    validation: DataFrame | Mapping[str, DataFrame] | str | None
    epoch_rows: int | None
    cache: Literal['disk', 'memory'] | None
    cache_limit: int | str | None
    start: Start
    rebalance: bool
    global_shuffle: bool
    order: Literal['worker', 'global']
    independent_workers: bool
    feed_timeout: float

class FeatureKeywords(TypedDict, total=False):
    """Those of `tensorflowonspark.node.feed.selection.FeatureOptions`."""
    features: str | Sequence[str] | None
    label: str | Sequence[str] | None
    sample_weight: str | None
    shapes: Mapping[str, Sequence[int | None]] | None
    dtypes: Mapping[str, npt.DTypeLike] | None
    fill: Mapping[str, Any] | None
    source: str | None
    only: str | None

class ComposedKeywords(FeatureKeywords, total=False):
    """Those of `tensorflowonspark.node.feed.selection.ComposedOptions`."""
    pack: Mapping[str, int] | None
    bucket: Mapping[str, Sequence[int]] | None
    too_long: str
    window: Window | None

class DatasetKeywords(ComposedKeywords, total=False):
    """Those of `tensorflowonspark.node.feed.selection.DatasetOptions`."""
    shuffle: bool
    seed: int
    first_step: int
    on_epoch_end: Callable[[int], None] | None

class ReadKeywords(TypedDict, total=False):
    """Those of `tensorflowonspark.tfrecords.options.ReadOptions`."""
    record_type: str | None
    mode: str | None
    column_name_of_corrupt_record: str | None
    float_type: str | None
    binary_features: str | Sequence[str] | None
    sample_records: int | None
    split_bytes: int | None
    recursive_file_lookup: bool | None
    max_record_bytes: int | str | None
    path_glob_filter: str | None
    modified_after: str | None
    modified_before: str | None
    time_zone: str | None
    base_path: str | None
    partition_column_type_inference: bool | None
    ignore_invalid_partition_paths: bool | None
    ignore_corrupt_files: bool | None
    ignore_missing_files: bool | None
    case_sensitive: bool | None

class ReduceKeywords(TypedDict, total=False):
    """Those of `tensorflowonspark.frames.block_plans.ReduceOptions`."""
    fill: Mapping[str, Any] | None
    schema: str | StructType | None

class MapKeywords(ReduceKeywords, total=False):
    """Those of `tensorflowonspark.frames.block_plans.MapOptions`."""
    feed_dict: Mapping[str, str] | None

class ModelKeywords(TypedDict, total=False):
    """Those of `tensorflowonspark.ml.params.ModelSettings`."""
    featuresCol: str
    featuresCols: Sequence[str] | None
    predictionCol: str
    probabilityCol: str
    rawPredictionCol: str
    thresholds: Sequence[float] | None
    shapes: Mapping[str, Sequence[int | None]] | None
    dtypes: Mapping[str, str] | None
    fill: Mapping[str, Any] | None
    handleInvalid: Invalid
    engine: Literal['keras', 'onnx']
    inferenceBatchSize: int | None
    customObjects: Mapping[str, Any] | None

class TrainingKeywords(ModelKeywords, total=False):
    """Those of `tensorflowonspark.ml.training_params.TrainingSettings`."""
    modelParams: Mapping[str, Any] | None
    labelCol: str
    labelCols: Sequence[str] | None
    weightCol: str | None
    validationIndicatorCol: str | None
    validationData: DataFrame | None
    optimizer: Any
    loss: Any
    metrics: Sequence[Any] | None
    lossWeights: Any
    classWeight: Mapping[int, float] | None
    callbacks: Sequence[Any] | None
    numWorkers: int | tuple[int, int]
    restarts: RestartPolicy | int
    gpusPerNode: int | None
    env: Mapping[str, str] | None
    epochs: int
    batchSize: int
    stepsPerExecution: int
    seed: int
    start: Start
    strategy: Strategy
    mixedPrecision: Precision | None
    checkpointDir: str | None
    cacheDir: str | None
    initialModel: KerasModel | None
    trainFn: TrainFn | None
    backend: Backend | None
    clusterOptions: Mapping[str, Any] | None
    registeredModelName: str | None
    modelTags: Mapping[str, Any] | None
    modelAliases: Sequence[str] | None
    verbose: int

class EstimatorKeywords(TrainingKeywords, total=False):
    """Those of `tensorflowonspark.ml.training_params.EstimatorSettings`."""
    model: Any

class ModelAccessors:
    """Those of `tensorflowonspark.ml.params.ModelSettings`."""
    featuresCol: Param[str]
    def setFeaturesCol(self, value: str) -> Self: ...
    def getFeaturesCol(self) -> str: ...
    featuresCols: Param[list[str]]
    def setFeaturesCols(self, value: Sequence[str] | None) -> Self: ...
    def getFeaturesCols(self) -> list[str] | None: ...
    predictionCol: Param[str]
    def setPredictionCol(self, value: str) -> Self: ...
    def getPredictionCol(self) -> str: ...
    probabilityCol: Param[str]
    def setProbabilityCol(self, value: str) -> Self: ...
    def getProbabilityCol(self) -> str: ...
    rawPredictionCol: Param[str]
    def setRawPredictionCol(self, value: str) -> Self: ...
    def getRawPredictionCol(self) -> str: ...
    thresholds: Param[Sequence[float]]
    def setThresholds(self, value: Sequence[float] | None) -> Self: ...
    def getThresholds(self) -> Sequence[float] | None: ...
    shapes: Param[dict[str, Sequence[int | None]]]
    def setShapes(self, value: Mapping[str, Sequence[int | None]] | None) -> Self: ...
    def getShapes(self) -> dict[str, Sequence[int | None]]: ...
    dtypes: Param[dict[str, str]]
    def setDtypes(self, value: Mapping[str, str] | None) -> Self: ...
    def getDtypes(self) -> dict[str, str]: ...
    fill: Param[dict[str, Any]]
    def setFill(self, value: Mapping[str, Any] | None) -> Self: ...
    def getFill(self) -> dict[str, Any]: ...
    handleInvalid: Param[Invalid]
    def setHandleInvalid(self, value: Invalid) -> Self: ...
    def getHandleInvalid(self) -> Invalid: ...
    engine: Param[Literal['keras', 'onnx']]
    def setEngine(self, value: Literal['keras', 'onnx']) -> Self: ...
    def getEngine(self) -> Literal['keras', 'onnx']: ...
    inferenceBatchSize: Param[int]
    def setInferenceBatchSize(self, value: int | None) -> Self: ...
    def getInferenceBatchSize(self) -> int | None: ...
    customObjects: Param[dict[str, Any]]
    def setCustomObjects(self, value: Mapping[str, Any] | None) -> Self: ...
    def getCustomObjects(self) -> dict[str, Any]: ...

class TrainingAccessors:
    """Those of `tensorflowonspark.ml.training_params.TrainingSettings`."""
    modelParams: Param[Mapping[str, Any]]
    def setModelParams(self, value: Mapping[str, Any] | None) -> Self: ...
    def getModelParams(self) -> Mapping[str, Any]: ...
    labelCol: Param[str]
    def setLabelCol(self, value: str) -> Self: ...
    def getLabelCol(self) -> str: ...
    labelCols: Param[list[str]]
    def setLabelCols(self, value: Sequence[str] | None) -> Self: ...
    def getLabelCols(self) -> list[str] | None: ...
    weightCol: Param[str]
    def setWeightCol(self, value: str | None) -> Self: ...
    def getWeightCol(self) -> str | None: ...
    validationIndicatorCol: Param[str]
    def setValidationIndicatorCol(self, value: str | None) -> Self: ...
    def getValidationIndicatorCol(self) -> str | None: ...
    validationData: Param[DataFrame]
    def setValidationData(self, value: DataFrame | None) -> Self: ...
    def getValidationData(self) -> DataFrame | None: ...
    optimizer: Param[Any]
    def setOptimizer(self, value: Any) -> Self: ...
    def getOptimizer(self) -> Any: ...
    loss: Param[Any]
    def setLoss(self, value: Any) -> Self: ...
    def getLoss(self) -> Any: ...
    metrics: Param[Sequence[Any]]
    def setMetrics(self, value: Sequence[Any] | None) -> Self: ...
    def getMetrics(self) -> Sequence[Any] | None: ...
    lossWeights: Param[Any]
    def setLossWeights(self, value: Any) -> Self: ...
    def getLossWeights(self) -> Any: ...
    classWeight: Param[dict[int, float]]
    def setClassWeight(self, value: Mapping[int, float] | None) -> Self: ...
    def getClassWeight(self) -> dict[int, float] | None: ...
    callbacks: Param[list[Any]]
    def setCallbacks(self, value: Sequence[Any] | None) -> Self: ...
    def getCallbacks(self) -> list[Any]: ...
    numWorkers: Param[int | tuple[int, int]]
    def setNumWorkers(self, value: int | tuple[int, int]) -> Self: ...
    def getNumWorkers(self) -> int | tuple[int, int]: ...
    restarts: Param[RestartPolicy | int]
    def setRestarts(self, value: RestartPolicy | int) -> Self: ...
    def getRestarts(self) -> RestartPolicy | int: ...
    gpusPerNode: Param[int]
    def setGpusPerNode(self, value: int | None) -> Self: ...
    def getGpusPerNode(self) -> int | None: ...
    env: Param[dict[str, str]]
    def setEnv(self, value: Mapping[str, str] | None) -> Self: ...
    def getEnv(self) -> dict[str, str]: ...
    epochs: Param[int]
    def setEpochs(self, value: int) -> Self: ...
    def getEpochs(self) -> int: ...
    batchSize: Param[int]
    def setBatchSize(self, value: int) -> Self: ...
    def getBatchSize(self) -> int: ...
    stepsPerExecution: Param[int]
    def setStepsPerExecution(self, value: int) -> Self: ...
    def getStepsPerExecution(self) -> int: ...
    seed: Param[int]
    def setSeed(self, value: int) -> Self: ...
    def getSeed(self) -> int: ...
    start: Param[Start]
    def setStart(self, value: Start) -> Self: ...
    def getStart(self) -> Start: ...
    strategy: Param[Strategy]
    def setStrategy(self, value: Strategy) -> Self: ...
    def getStrategy(self) -> Strategy: ...
    mixedPrecision: Param[Precision]
    def setMixedPrecision(self, value: Precision | None) -> Self: ...
    def getMixedPrecision(self) -> Precision | None: ...
    checkpointDir: Param[str]
    def setCheckpointDir(self, value: str | None) -> Self: ...
    def getCheckpointDir(self) -> str | None: ...
    cacheDir: Param[str]
    def setCacheDir(self, value: str | None) -> Self: ...
    def getCacheDir(self) -> str | None: ...
    initialModel: Param[KerasModel]
    def setInitialModel(self, value: KerasModel | None) -> Self: ...
    def getInitialModel(self) -> KerasModel | None: ...
    trainFn: Param[TrainFn]
    def setTrainFn(self, value: TrainFn | None) -> Self: ...
    def getTrainFn(self) -> TrainFn | None: ...
    backend: Param[Backend]
    def setBackend(self, value: Backend | None) -> Self: ...
    def getBackend(self) -> Backend | None: ...
    clusterOptions: Param[dict[str, Any]]
    def setClusterOptions(self, value: Mapping[str, Any] | None) -> Self: ...
    def getClusterOptions(self) -> dict[str, Any]: ...
    registeredModelName: Param[str]
    def setRegisteredModelName(self, value: str | None) -> Self: ...
    def getRegisteredModelName(self) -> str | None: ...
    modelTags: Param[dict[str, Any]]
    def setModelTags(self, value: Mapping[str, Any] | None) -> Self: ...
    def getModelTags(self) -> dict[str, Any]: ...
    modelAliases: Param[list[str]]
    def setModelAliases(self, value: Sequence[str] | None) -> Self: ...
    def getModelAliases(self) -> list[str]: ...
    verbose: Param[int]
    def setVerbose(self, value: int) -> Self: ...
    def getVerbose(self) -> int: ...

class EstimatorAccessors(TrainingAccessors):
    """Those of `tensorflowonspark.ml.training_params.EstimatorSettings`."""
    model: Param[Any]
    def setModel(self, value: Any) -> Self: ...
    def getModel(self) -> Any: ...

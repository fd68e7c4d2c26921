"""Params of `TFEstimator` and `TFModel`."""

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.ml.param import Param, Params, TypeConverters

from tensorflowonspark.errors import SpecError
from tensorflowonspark.v2.program import InputMode, Namespace

__all__ = [
    "HasBatchSize", "HasClusterSize", "HasEpochs", "HasExportDir", "HasGraceSecs", "HasInputMapping", "HasInputMode",
    "HasMasterNode", "HasModelDir", "HasNumPS", "HasOutputMapping", "HasProtocol", "HasReaders", "HasSignatureDefKey",
    "HasSteps", "HasTFRecordDir", "HasTagSet", "HasTensorboard", "TFParams", "TFTypeConverters",
]  # fmt: skip

_INT, _TEXT, _BOOLEAN = TypeConverters.toInt, TypeConverters.toString, TypeConverters.toBoolean


class TFTypeConverters:
    """Type converters that Spark ML lacks."""

    @staticmethod
    def toDict(value: Any) -> dict[Any, Any]:
        """Return a mapping as a dict; Spark ML converts the TypeError to an error that names the param."""
        if not isinstance(value, Mapping):
            raise TypeError(f"could not convert {value!r} to a dict, as in {{'column': 'tensor'}}")
        return dict(value)


def _param(name: str, doc: str, convert: Callable[[Any], Any]) -> Any:
    return Param(Params._dummy(), name, doc, convert)


def _accessors(name: str, title: str) -> tuple[Any, Any]:
    """Return a param's ``setX``, which returns the stage, and its ``getX``."""

    def set_one(self: Any, value: Any) -> Any:
        return self._set(**{name: value})

    def get_one(self: Any) -> Any:
        return self.getOrDefault(name)

    for function, prefix, doc in ((set_one, "set", "Set `{}`; return self."), (get_one, "get", "Return `{}`.")):
        function.__name__ = function.__qualname__ = f"{prefix}{title}"
        function.__doc__ = doc.format(name)
    return set_one, get_one


class TFParams(Params):
    """The params of a stage, and the arguments of its program.

    Attributes
    ----------
    args : Namespace
        The arguments.
    """

    args: Any = None

    def merge_args_params(self) -> Namespace:
        """Return the arguments and the values of all params.

        A param that was set has precedence over an argument of its name, and the argument over the param's default.
        """
        merged = Namespace({} if self.args is None else self.args)
        for param in self.params:
            if self.isSet(param) or (self.hasDefault(param) and param.name not in merged):
                setattr(merged, param.name, self.getOrDefault(param))
        return merged

    def _is_given(self, name: str) -> bool:
        """Return whether a param was set, or is among the arguments."""
        return bool(self.isSet(name)) or name in Namespace({} if self.args is None else self.args)


class HasBatchSize(Params):
    """Rows of a batch."""

    batch_size = _param("batch_size", "rows of a batch", _INT)
    setBatchSize, getBatchSize = _accessors("batch_size", "BatchSize")


class HasClusterSize(Params):
    """Nodes of the cluster."""

    cluster_size = _param("cluster_size", "nodes of the cluster, of all roles", _INT)
    setClusterSize, getClusterSize = _accessors("cluster_size", "ClusterSize")


class HasEpochs(Params):
    """Passes over all rows."""

    epochs = _param("epochs", "passes over all rows", _INT)
    setEpochs, getEpochs = _accessors("epochs", "Epochs")


class HasExportDir(Params):
    """Directory of the SavedModel."""

    export_dir = _param("export_dir", "directory of the SavedModel that training exports and TFModel applies", _TEXT)
    setExportDir, getExportDir = _accessors("export_dir", "ExportDir")


class HasGraceSecs(Params):
    """Time for the nodes after the last row."""

    grace_secs = _param("grace_secs", "seconds for the nodes after the last row, as to export a model", _INT)
    setGraceSecs, getGraceSecs = _accessors("grace_secs", "GraceSecs")


class HasInputMapping(Params):
    """Input tensors by column."""

    input_mapping = _param("input_mapping", "input tensor by column", TFTypeConverters.toDict)
    setInputMapping, getInputMapping = _accessors("input_mapping", "InputMapping")


class HasInputMode(Params):
    """Reader of the data: with an estimator always Spark."""

    input_mode = _param("input_mode", "reader of the data: 1 for Spark, which feeds it", _INT)
    _setInputMode, getInputMode = _accessors("input_mode", "InputMode")

    def setInputMode(self, value: int) -> Any:
        """Set `input_mode`; return self.

        Raises
        ------
        SpecError
            For `InputMode.TENSORFLOW`: an estimator feeds the rows of its DataFrame.
        """
        if value == InputMode.TENSORFLOW:
            raise SpecError(
                "input_mode=TENSORFLOW: TFEstimator.fit feeds the rows of its DataFrame. A program that reads its data "
                "by itself is started by TFCluster.run(..., input_mode=InputMode.TENSORFLOW), or by TFParallel.run"
            )
        return self._setInputMode(value)


class HasMasterNode(Params):
    """Role of the first worker."""

    master_node = _param("master_node", "role of the worker that exports: 'chief' or 'master'; None for none", _TEXT)
    setMasterNode, getMasterNode = _accessors("master_node", "MasterNode")


class HasModelDir(Params):
    """Directory of the checkpoints."""

    model_dir = _param("model_dir", "directory of the training's checkpoints", _TEXT)
    setModelDir, getModelDir = _accessors("model_dir", "ModelDir")


class HasNumPS(Params):
    """Parameter servers."""

    num_ps = _param("num_ps", "parameter servers among the nodes", _INT)
    driver_ps_nodes = _param("driver_ps_nodes", "whether the parameter servers run on the driver's host", _BOOLEAN)
    setNumPS, getNumPS = _accessors("num_ps", "NumPS")
    setDriverPSNodes, getDriverPSNodes = _accessors("driver_ps_nodes", "DriverPSNodes")


class HasOutputMapping(Params):
    """Columns by output tensor."""

    output_mapping = _param("output_mapping", "column by output tensor", TFTypeConverters.toDict)
    setOutputMapping, getOutputMapping = _accessors("output_mapping", "OutputMapping")


class HasProtocol(Params):
    """Network protocol of the nodes; only the program uses it."""

    protocol = _param("protocol", "network protocol of TensorFlow; for the program only", _TEXT)
    setProtocol, getProtocol = _accessors("protocol", "Protocol")


class HasReaders(Params):
    """Readers of a queue; only the program uses it."""

    readers = _param("readers", "threads that read; for the program only", _INT)
    setReaders, getReaders = _accessors("readers", "Readers")


class HasSteps(Params):
    """Steps of the training; only the program uses it."""

    steps = _param("steps", "steps of the training at most; for the program only", _INT)
    setSteps, getSteps = _accessors("steps", "Steps")


class HasTensorboard(Params):
    """Whether a TensorBoard runs beside the training."""

    tensorboard = _param("tensorboard", "whether a TensorBoard runs beside the training", _BOOLEAN)
    setTensorboard, getTensorboard = _accessors("tensorboard", "Tensorboard")


class HasTFRecordDir(Params):
    """Directory of TFRecord files; only the program uses it."""

    tfrecord_dir = _param("tfrecord_dir", "directory of TFRecord files; for the program only", _TEXT)
    setTFRecordDir, getTFRecordDir = _accessors("tfrecord_dir", "TFRecordDir")


class HasSignatureDefKey(Params):
    """Signature of the SavedModel."""

    signature_def_key = _param("signature_def_key", "signature of the SavedModel; 'serving_default' if none", _TEXT)
    setSignatureDefKey, getSignatureDefKey = _accessors("signature_def_key", "SignatureDefKey")


class HasTagSet(Params):
    """Tags of the SavedModel's graph."""

    tag_set = _param("tag_set", "tags of the SavedModel's graph, separated by commas; 'serve' if none", _TEXT)
    setTagSet, getTagSet = _accessors("tag_set", "TagSet")

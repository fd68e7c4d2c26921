"""Stages of Spark ML: an estimator that feeds a training function, and a model that applies a SavedModel.

New programs use `KerasEstimator` and `KerasModel` in ``tensorflowonspark.ml``.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pyspark.ml import Estimator, Model
from pyspark.ml.param import Param, Params, TypeConverters

from tensorflowonspark.columns import select
from tensorflowonspark.errors import SpecError
from tensorflowonspark.ml.distribution import distribute
from tensorflowonspark.ml.fetching import fetch_saved_model
from tensorflowonspark.ml.model_bundle import ModelBundle
from tensorflowonspark.ml.outputs import struct_of
from tensorflowonspark.ml.predict import PredictPlan, with_results
from tensorflowonspark.v2.deprecation import warn_deprecated
from tensorflowonspark.v2.mapping import fed_columns, input_columns, output_columns
from tensorflowonspark.v2.program import InputMode, Namespace

from . import TFCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "HasBatchSize", "HasClusterSize", "HasEpochs", "HasExportDir", "HasGraceSecs", "HasInputMapping", "HasInputMode",
    "HasMasterNode", "HasModelDir", "HasNumPS", "HasOutputMapping", "HasProtocol", "HasReaders", "HasSignatureDefKey",
    "HasSteps", "HasTFRecordDir", "HasTagSet", "HasTensorboard", "Namespace", "TFEstimator", "TFModel", "TFParams",
    "TFTypeConverters",
]  # fmt: skip

_SIGNATURE, _TAGS = "serving_default", "serve"  # the defaults of Keras and TensorFlow

_INT, _TEXT, _BOOLEAN = TypeConverters.toInt, TypeConverters.toString, TypeConverters.toBoolean


class TFTypeConverters:
    """Type converters that Spark ML lacks."""

    @staticmethod
    def toDict(value: Any) -> dict[Any, Any]:
        """Return a mapping as a dict; Spark ML converts the TypeError to an error that names the param."""
        if not isinstance(value, Mapping):
            raise TypeError(f"could not convert {value!r} to a dict, as in {{'column': 'tensor'}}")
        return dict(value)


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


def _has(title: str, name: str, text: str, convert: Callable[[Any], Any]) -> Any:
    """Return a class of stages that have a param, with its ``setX``, which returns the stage, and its ``getX``."""

    def set_one(self: Any, value: Any) -> Any:
        return self._set(**{name: value})

    def get_one(self: Any) -> Any:
        return self.getOrDefault(name)

    members = {name: Param(Params._dummy(), name, text, convert), "__module__": __name__, "__doc__": f"{text}."}
    for function, prefix, doc in ((set_one, "set", "Set `{}`; return self."), (get_one, "get", "Return `{}`.")):
        function.__name__ = function.__qualname__ = f"{prefix}{title}"
        function.__doc__ = doc.format(name)
        members[function.__name__] = function
    return type(f"Has{title}", (Params,), members)


HasBatchSize: Any = _has("BatchSize", "batch_size", "rows of a batch", _INT)
HasClusterSize: Any = _has("ClusterSize", "cluster_size", "nodes of the cluster, of all roles", _INT)
HasEpochs: Any = _has("Epochs", "epochs", "passes over all rows", _INT)
HasExportDir: Any = _has(
    "ExportDir", "export_dir", "directory of the SavedModel that training exports and TFModel applies", _TEXT
)
HasGraceSecs: Any = _has(
    "GraceSecs", "grace_secs", "seconds for the nodes after the last row, as to export a model", _INT
)
HasInputMapping: Any = _has("InputMapping", "input_mapping", "input tensor by column", TFTypeConverters.toDict)
HasMasterNode: Any = _has(
    "MasterNode", "master_node", "role of the worker that exports: 'chief' or 'master'; None for none", _TEXT
)
HasModelDir: Any = _has("ModelDir", "model_dir", "directory of the training's checkpoints", _TEXT)
HasOutputMapping: Any = _has("OutputMapping", "output_mapping", "column by output tensor", TFTypeConverters.toDict)
HasProtocol: Any = _has("Protocol", "protocol", "network protocol of TensorFlow; for the program only", _TEXT)
HasReaders: Any = _has("Readers", "readers", "threads that read; for the program only", _INT)
HasSteps: Any = _has("Steps", "steps", "steps of the training at most; for the program only", _INT)
HasTensorboard: Any = _has("Tensorboard", "tensorboard", "whether a TensorBoard runs beside the training", _BOOLEAN)
HasTFRecordDir: Any = _has("TFRecordDir", "tfrecord_dir", "directory of TFRecord files; for the program only", _TEXT)
HasSignatureDefKey: Any = _has(
    "SignatureDefKey", "signature_def_key", "signature of the SavedModel; 'serving_default' if none", _TEXT
)
HasTagSet: Any = _has(
    "TagSet", "tag_set", "tags of the SavedModel's graph, separated by commas; 'serve' if none", _TEXT
)
_NumPS: Any = _has("NumPS", "num_ps", "parameter servers among the nodes", _INT)
_DriverPSNodes: Any = _has(
    "DriverPSNodes", "driver_ps_nodes", "whether the parameter servers run on the driver's host", _BOOLEAN
)
_InputMode: Any = _has("InputMode", "input_mode", "reader of the data: 1 for Spark, which feeds it", _INT)


class HasNumPS(_NumPS, _DriverPSNodes):
    """Parameter servers."""


class HasInputMode(_InputMode):
    """Reader of the data: with an estimator always Spark."""

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
        return super().setInputMode(value)


class TFModel(
    TFParams, HasInputMapping, HasOutputMapping, HasBatchSize, HasModelDir, HasExportDir, HasSignatureDefKey, HasTagSet,
    Model,
):  # fmt: skip
    """A model that applies a SavedModel to the rows of a DataFrame.

    ``transform`` returns only the columns of `output_mapping`, sorted by the names of their tensors. Each has its
    tensor's type: float32 becomes ``float``, or ``array<float>`` if a row has several; strings become ``binary``.

    Parameters
    ----------
    tf_args : dict, list, argparse.Namespace or Namespace
        Arguments of the program; a param that was not set takes its value from the argument of its name.

    Examples
    --------
    >>> model = TFModel({"batch_size": 256}).setExportDir("hdfs:///models/digits").setInputMapping({"image": "pixels"})
    >>> model.setOutputMapping({"dense": "scores"}).merge_args_params().batch_size
    256
    """

    def __init__(self, tf_args: Any) -> None:
        super().__init__()
        warn_deprecated("TFModel", "tensorflowonspark.ml.KerasModel.from_saved_model(path)")
        self.args = Namespace(tf_args)
        self._setDefault(
            input_mapping={}, output_mapping={}, batch_size=100, model_dir=None, export_dir=None,
            signature_def_key=None, tag_set=None,
        )  # fmt: skip

    def _transform(self, dataset: "DataFrame") -> "DataFrame":
        args = self.merge_args_params()
        fed_columns(dataset, args.input_mapping)  # before TensorFlow is loaded
        bundle = _saved_model(args)
        frame, taken = input_columns(dataset, args.input_mapping, bundle.inputs)
        outputs, types = output_columns(args.output_mapping, bundle.outputs)
        plan = PredictPlan(
            model=distribute(dataset.sparkSession, bundle),
            taken=taken,
            outputs=outputs,
            types=struct_of(types),
            # The default of 2.x is too small for most models, and the results do not depend on it.
            batch_rows=args.batch_size if self._is_given("batch_size") else None,
        )
        return with_results(plan, frame, keep=())


def _saved_model(args: Namespace) -> ModelBundle:
    """Return the SavedModel in `export_dir`.

    Raises
    ------
    SpecError
        If there is no such directory, or it has no such signature or tags.
    """
    if not args.export_dir:
        reason = (
            f"model_dir={args.model_dir!r} holds checkpoints, which have no signature; TensorFlow 1 could serve them, "
            "and TensorFlow 2 can't"
            if args.model_dir
            else "no model is given"
        )
        raise SpecError(
            f"{reason}: export a SavedModel, as by compat.export_saved_model(model, export_dir), and "
            "call setExportDir(export_dir)"
        )
    tags = [tag.strip() for tag in (args.tag_set or _TAGS).split(",")]
    return fetch_saved_model(args.export_dir, args.signature_def_key or _SIGNATURE, tags)


class TFEstimator(
    TFParams, HasInputMapping, HasClusterSize, HasNumPS, HasInputMode, HasMasterNode, HasProtocol, HasGraceSecs,
    HasTensorboard, HasModelDir, HasExportDir, HasTFRecordDir, HasBatchSize, HasEpochs, HasReaders, HasSteps,
    Estimator[TFModel],
):  # fmt: skip
    """An estimator that feeds a DataFrame to a training function on a cluster, and returns a `TFModel` of its export.

    Parameters
    ----------
    train_fn : callable
        ``train_fn(args, ctx)``, as for `TFCluster.run`. `args` has the arguments and all params by name; if `tf_args`
        is a list, `args` is that list.
    tf_args : dict, list, argparse.Namespace or Namespace
        Arguments of the program; a param that was not set takes its value from the argument of its name.
    export_fn : callable, optional
        A function of TensorFlow 1, which raises.

    Raises
    ------
    SpecError
        If `export_fn` is given.
    """

    def __init__(self, train_fn: Callable[[Any, Any], Any], tf_args: Any, export_fn: Any = None) -> None:
        super().__init__()
        warn_deprecated("TFEstimator", "tensorflowonspark.ml.KerasEstimator(model, ...)")
        if export_fn is not None:
            raise SpecError(
                "export_fn made a SavedModel of a session of TensorFlow 1, and TensorFlow 2 has none: export in "
                "train_fn itself, as by compat.export_saved_model(model, args.export_dir, ctx.job_name == 'chief')"
            )
        self.train_fn = train_fn
        self.args = Namespace(tf_args)
        self._setDefault(
            input_mapping={}, cluster_size=1, num_ps=0, driver_ps_nodes=False, input_mode=InputMode.SPARK,
            master_node="chief", protocol="grpc", tensorboard=False, model_dir=None, export_dir=None, tfrecord_dir=None,
            batch_size=100, epochs=1, readers=1, steps=1000, grace_secs=30,
        )  # fmt: skip

    def _fit(self, dataset: "DataFrame") -> TFModel:
        args = self.merge_args_params()
        frame = select(dataset, fed_columns(dataset, args.input_mapping))
        cluster = TFCluster.run(
            dataset.sparkSession.sparkContext,
            self.train_fn,
            args if self.args.argv is None else self.args.argv,
            args.cluster_size,
            args.num_ps,
            args.tensorboard,
            InputMode.SPARK,
            driver_ps_nodes=args.driver_ps_nodes,
            master_node=args.master_node,
        )
        try:
            cluster.train(frame.rdd, args.epochs)
        except BaseException:
            with suppress(Exception):  # the first error is raised below
                cluster.shutdown(timeout=0)
            raise
        cluster.shutdown(grace_secs=args.grace_secs)
        fitted: TFModel = self._copyValues(TFModel(self.args)._resetUid(self.uid))
        return fitted

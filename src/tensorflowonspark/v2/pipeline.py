"""Stages of Spark ML by the names of 2.x: an estimator that feeds a training function, and a model of a SavedModel.

A program of 2.x runs with them as it is. For a new one there are `KerasEstimator` and `KerasModel` in `ml`.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pyspark.ml import Estimator, Model

from tensorflowonspark.columns import select
from tensorflowonspark.errors import SpecError
from tensorflowonspark.ml.distribution import distribute
from tensorflowonspark.ml.model_bundle import ModelBundle, fetch_saved_model
from tensorflowonspark.ml.predict import PredictPlan, with_results

from . import TFCluster
from ._mapping import fed_columns, given_columns, taken_columns
from ._mode import InputMode
from ._namespace import Namespace
from ._old import show_new_way
from ._params import (
    HasBatchSize,
    HasClusterSize,
    HasEpochs,
    HasExportDir,
    HasGraceSecs,
    HasInputMapping,
    HasInputMode,
    HasMasterNode,
    HasModelDir,
    HasNumPS,
    HasOutputMapping,
    HasProtocol,
    HasReaders,
    HasSignatureDefKey,
    HasSteps,
    HasTagSet,
    HasTensorboard,
    HasTFRecordDir,
    TFParams,
    TFTypeConverters,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "HasBatchSize", "HasClusterSize", "HasEpochs", "HasExportDir", "HasGraceSecs", "HasInputMapping", "HasInputMode",
    "HasMasterNode", "HasModelDir", "HasNumPS", "HasOutputMapping", "HasProtocol", "HasReaders", "HasSignatureDefKey",
    "HasSteps", "HasTFRecordDir", "HasTagSet", "HasTensorboard", "Namespace", "TFEstimator", "TFModel", "TFParams",
    "TFTypeConverters",
]  # fmt: skip

_SIGNATURE, _TAGS = "serving_default", "serve"  # what Keras and TensorFlow export for serving


class TFModel(
    TFParams, HasInputMapping, HasOutputMapping, HasBatchSize, HasModelDir, HasExportDir, HasSignatureDefKey, HasTagSet,
    Model,
):  # fmt: skip
    """Applies a SavedModel to the rows of a DataFrame, and returns what it gives.

    ``transform`` returns the columns of `output_mapping`, and no others, sorted by the names of their tensors. Each has
    its tensor's type: float32 becomes ``float``, several of them in a row ``array<float>``, strings ``binary``.

    Parameters
    ----------
    tf_args : dict, list, argparse.Namespace or Namespace
        Arguments of the program; a param of the same name that was not set has its value from here.

    Examples
    --------
    >>> model = TFModel({"batch_size": 256}).setExportDir("hdfs:///models/digits").setInputMapping({"image": "pixels"})
    >>> model.setOutputMapping({"dense": "scores"}).merge_args_params().batch_size
    256
    """

    def __init__(self, tf_args: Any) -> None:
        super().__init__()
        show_new_way("TFModel", "tensorflowonspark.ml.KerasModel.from_saved_model(path)")
        self.args = Namespace(tf_args)
        self._setDefault(
            input_mapping={}, output_mapping={}, batch_size=100, model_dir=None, export_dir=None,
            signature_def_key=None, tag_set=None,
        )  # fmt: skip

    def _transform(self, dataset: "DataFrame") -> "DataFrame":
        args = self.merge_args_params()
        fed_columns(dataset, args.input_mapping)  # before TensorFlow is loaded
        bundle = _saved_model(args)
        frame, taken = taken_columns(dataset, args.input_mapping, bundle.inputs)
        outputs, types = given_columns(args.output_mapping, bundle.outputs)
        plan = PredictPlan(
            model=distribute(dataset.sparkSession, bundle),
            taken=taken,
            outputs=outputs,
            types=tuple(types.items()),
            # The default of 2.x is small for most models, and makes no difference to the results.
            batch_rows=args.batch_size if self._is_given("batch_size") else None,
        )
        return with_results(plan, frame, keep=())


def _saved_model(args: Namespace) -> ModelBundle:
    """Return what `export_dir` holds.

    Raises
    ------
    SpecError
        If there is no such directory, or no such signature or tags in it.
    """
    if not args.export_dir:
        reason = (
            f"model_dir={args.model_dir!r} holds checkpoints, which have no signature; TensorFlow 1 could serve them, "
            "and TensorFlow 2 can't"
            if args.model_dir
            else "no model is given"
        )
        raise SpecError(
            f"{reason}: export a SavedModel, as by compat.export_saved_model(model, export_dir), and say "
            "setExportDir(export_dir)"
        )
    tags = [tag.strip() for tag in (args.tag_set or _TAGS).split(",")]
    return fetch_saved_model(args.export_dir, args.signature_def_key or _SIGNATURE, tags)


class TFEstimator(
    TFParams, HasInputMapping, HasClusterSize, HasNumPS, HasInputMode, HasMasterNode, HasProtocol, HasGraceSecs,
    HasTensorboard, HasModelDir, HasExportDir, HasTFRecordDir, HasBatchSize, HasEpochs, HasReaders, HasSteps,
    Estimator[TFModel],
):  # fmt: skip
    """Feeds the rows of a DataFrame to a training function on a cluster, and returns a `TFModel` of what it exported.

    Parameters
    ----------
    train_fn : callable
        A function of (args, ctx), as `TFCluster.run` takes it. `args` are the arguments and all params by their names;
        where `tf_args` is a list it gets this list.
    tf_args : dict, list, argparse.Namespace or Namespace
        Arguments of the program; a param of the same name that was not set has its value from here.
    export_fn : callable, optional
        A function of TensorFlow 1, which is refused.

    Raises
    ------
    SpecError
        If there is an `export_fn`.
    """

    def __init__(self, train_fn: Callable[[Any, Any], Any], tf_args: Any, export_fn: Any = None) -> None:
        super().__init__()
        show_new_way("TFEstimator", "tensorflowonspark.ml.KerasEstimator(model, ...)")
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
            with suppress(Exception):  # what has failed is said below
                cluster.shutdown(timeout=0)
            raise
        cluster.shutdown(grace_secs=args.grace_secs)
        fitted: TFModel = self._copyValues(TFModel(self.args))
        return fitted

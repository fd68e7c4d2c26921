"""The fitted stage: a Keras model, a SavedModel or a function applied to the rows of a DataFrame."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import cloudpickle
import pyarrow as pa
from pyspark.ml import Model
from pyspark.ml.linalg import Vectors
from pyspark.ml.util import MLReadable, MLWritable
from pyspark.sql.pandas.types import from_arrow_schema

from tensorflowonspark.columns import arrow_type, check_schema, natural_type, to_batch
from tensorflowonspark.declarations import shows
from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.structure import TensorInfo
from tensorflowonspark.ml.code import WithCode, code_for, pickled
from tensorflowonspark.ml.distribution import distribute, for_engine, loaded_here
from tensorflowonspark.ml.exporting import RowSource, Target, export_stage
from tensorflowonspark.ml.features import TakenColumns, call_in_pieces, features_of
from tensorflowonspark.ml.fetching import fetch_keras_model, fetch_saved_model
from tensorflowonspark.ml.inputs import check_dtypes, column_shapes, holds_arrays
from tensorflowonspark.ml.model_bundle import ModelBundle, described
from tensorflowonspark.ml.outputs import (
    Columns,
    OutputGroups,
    OutputInfo,
    classifier_of,
    result_types,
    result_values,
    struct_of,
    with_thresholds,
)
from tensorflowonspark.ml.params import ModelParams, ModelSettings, check_columns
from tensorflowonspark.ml.persistence import StageReader, StageWriter
from tensorflowonspark.ml.predict import PredictPlan, batch_of_row, with_results
from tensorflowonspark.ml.row_progress import RowCounts, RowProgress
from tensorflowonspark.ml.serialization import is_model, load_model, serialize_model
from tensorflowonspark.ml.summary import TrainingSummary
from tensorflowonspark.run_manifest import Record

if TYPE_CHECKING:
    from pyspark.ml.linalg import DenseVector
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType
    from typing_extensions import Self, Unpack

    from tensorflowonspark.keywords import ModelKeywords

_SKIPPING = "To skip such rows, or keep them with null results: handleInvalid='skip' or 'keep'"


@shows(ModelSettings)
class KerasModel(ModelParams, Model, MLReadable["KerasModel"], MLWritable):
    """A model that adds result columns to the rows of a DataFrame, from `KerasEstimator.fit` or a ``from_...`` method.

    A classifier adds ``rawPrediction``, ``probability`` (vectors) and ``prediction`` (the class, a
    double); any other model adds ``prediction``: a double (a bigint for integers of 64 bits), an array, or a struct of
    several outputs.

    Parameters
    ----------
    bundle : ModelBundle, optional
        The trained model.
    history : mapping, optional
        The values of each metric of its training, one for each epoch.
    **params
        Those of `ModelSettings`.

    Raises
    ------
    SpecError
        If there is no such param, or it can't have that value.

    Examples
    --------
    >>> stage = KerasModel.from_function(lambda x: x * 2, {"twice": ("float32", ())}, featuresCol="x")
    >>> stage.transform(spark.createDataFrame([(1.5,)], "x float")).first().prediction
    3.0
    """

    def __init__(
        self,
        bundle: ModelBundle | None = None,
        *,
        history: Mapping[str, Sequence[float]] | None = None,
        **params: "Unpack[ModelKeywords]",
    ) -> None:
        super().__init__()
        self._assign(**params)
        self._given_bundle = bundle
        self.history: dict[str, list[float]] = {name: list(values) for name, values in (history or {}).items()}
        self._layers: tuple[str, ...] = ()
        self._progress: list[RowCounts] = []  # while its rows are counted; copies share it
        self._manifest: Record = {}  # of the run that has trained it, if a `KerasEstimator` has

    def setParams(self, **params: "Unpack[ModelKeywords]") -> "Self":
        """Set several params at once.

        Parameters
        ----------
        **params
            Values by the names of params, as in the constructor; None unsets a param.

        Returns
        -------
        KerasModel
            The same stage.

        Raises
        ------
        SpecError
            If there is no such param, or it can't have that value.

        Examples
        --------
        >>> KerasModel().setParams(featuresCol="image", inferenceBatchSize=64).getInferenceBatchSize()
        64
        """
        return self._assign(**params)

    @classmethod
    def from_keras(cls, model: Any, **params: "Unpack[ModelKeywords]") -> "KerasModel":
        """Return a stage with a Keras model in memory.

        Parameters
        ----------
        model : keras.Model
            A built model, of Keras 3 or of ``tf_keras``.
        **params
            The params of the stage.

        Returns
        -------
        KerasModel

        Raises
        ------
        SpecError
            If it is no Keras model, or a param is wrong.

        Examples
        --------
        >>> import keras
        >>> network = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False)])
        >>> network.set_weights([np.array([[1.0], [2.0]])])
        >>> df = spark.createDataFrame([([1.0, 1.0],), ([0.5, 2.0],)], "features array<float>")
        >>> [row.prediction for row in KerasModel.from_keras(network).transform(df).collect()]
        [3.0, 4.5]
        """
        if not is_model(model):
            raise SpecError(f"{model!r}: expected a Keras model")
        return cls(described(serialize_model(model), model), **params)

    @classmethod
    def from_file(cls, path: str, *, library: str = "keras", **params: "Unpack[ModelKeywords]") -> "KerasModel":
        """Return a stage with the model of a ``.keras`` file.

        Parameters
        ----------
        path : str
            The file, on any file system.
        library : str
            ``keras`` or ``tf_keras``, which reads it.
        **params
            The params of the stage; `customObjects` are needed to read a model with classes of your own.

        Returns
        -------
        KerasModel

        Raises
        ------
        SpecError
            If there is no such file, Keras can't read it, or a param is wrong.

        Examples
        --------
        >>> import keras, tempfile
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     path = f"{directory}/model.keras"
        ...     keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]).save(path)
        ...     stage = KerasModel.from_file(path, featuresCols=["a", "b"])
        >>> stage.transform(spark.createDataFrame([(1.0, 2.0)], "a double, b double")).columns
        ['a', 'b', 'prediction']
        """
        return cls(fetch_keras_model(path, library, params.pop("customObjects", None)), **params)

    @classmethod
    def from_saved_model(
        cls,
        path: str,
        *,
        signature: str = "serving_default",
        tags: Sequence[str] = (),
        **params: "Unpack[ModelKeywords]",
    ) -> "KerasModel":
        """Return a stage with a SavedModel.

        Parameters
        ----------
        path : str
            Its directory, on any file system.
        signature : str
            The signature whose outputs become the result columns.
        tags : sequence of str
            The tags of the graph; needed only if the SavedModel has several.
        **params
            The params of the stage.

        Returns
        -------
        KerasModel

        Raises
        ------
        SpecError
            If there is no such SavedModel, or no such signature or tags in it, or a param is wrong.

        Examples
        --------
        >>> import keras, tempfile
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]).export(directory, verbose=False)
        ...     stage = KerasModel.from_saved_model(directory)
        >>> stage.transform(spark.createDataFrame([([1.0, 2.0],)], "features array<float>")).columns
        ['features', 'prediction']
        """
        return cls(fetch_saved_model(path, signature, tags), **params)

    @classmethod
    def from_function(
        cls,
        function: Callable[[Any], Any],
        outputs: Mapping[str, tuple[str, Sequence[int]]],
        **params: "Unpack[ModelKeywords]",
    ) -> "KerasModel":
        """Return a stage with a function of NumPy arrays.

        Parameters
        ----------
        function : callable
            Takes an array of shape ``(rows, ...)``, or a dict of them if there are several feature columns. Returns an
            array with as many rows, or a dict of arrays by output.
        outputs : mapping
            The dtype and one row's shape of each output, by name, as in ``{"scores": ("float32", (10,))}``.
        **params
            The params of the stage.

        Returns
        -------
        KerasModel

        Raises
        ------
        SpecError
            If a param is wrong.

        Examples
        --------
        >>> stage = KerasModel.from_function(lambda x: x["a"] + x["b"], {"c": ("float32", ())}, featuresCols=["a", "b"])
        >>> stage.transform(spark.createDataFrame([(1.0, 2.0)], "a float, b float")).first().prediction
        3.0
        """
        infos = (OutputInfo(TensorInfo(name, tuple(shape), dtype)) for name, (dtype, shape) in outputs.items())
        return cls(ModelBundle("function", cloudpickle.dumps(WithCode(function)), outputs=tuple(infos)), **params)

    @property
    def custom_code(self) -> list[str]:
        """Names of the code in the model, which runs when it is used.

        These are the user's own classes and functions, and what can run any code: ``function.pkl``, ``saved_model``
        (its graph), and ``model.keras of tf_keras``.
        """
        return self._bundle.code_names

    def __repr__(self) -> str:
        """Return its uid, and the names of the code that it contains."""
        names = self._given_bundle.code_names if self._given_bundle else []
        return f"{self.uid} (with custom code: {', '.join(names)})" if names else str(self.uid)

    def keras(self) -> Any:
        """Return the Keras model, loaded in this process.

        Returns
        -------
        keras.Model

        Raises
        ------
        SpecError
            If the stage has a SavedModel or a function, or Keras can't read the model.

        Examples
        --------
        >>> import keras
        >>> stage = KerasModel.from_keras(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
        >>> stage.keras().count_params()
        3
        """
        return load_model(self._complete_bundle)

    @property
    def hasSummary(self) -> bool:
        """Whether a `KerasEstimator` trained it, so that there is a `summary`."""
        return bool(self.history)

    @property
    def summary(self) -> TrainingSummary:
        """The history of its training, as a `TrainingSummary`.

        Raises
        ------
        SpecError
            If it has none.
        """
        if not self.hasSummary:
            raise SpecError("this model has no history: it was not trained by a KerasEstimator")
        return TrainingSummary(self.history)

    @property
    def numClasses(self) -> int:
        """The number of classes of a classifier.

        Raises
        ------
        SpecError
            If not exactly one output of the model has classes.
        """
        return classifier_of(self._bundle.outputs, "numClasses").classes

    def predict(self, value: Any) -> Any:
        """Return the prediction for one row, computed in this process.

        Parameters
        ----------
        value : vector, array, number, str or mapping
            The row's features: the value of the column of features; of several columns, the values by column, as a
            dict or a row of Spark.

        Returns
        -------
        float, int, list or dict
            What ``transform`` writes into the column of predictions: the class of a classifier; several outputs by
            name.

        Raises
        ------
        SpecError
            If a column's value is missing, or of a type that the model does not take.
        FeedError
            If a value is null, or has a wrong shape.

        Examples
        --------
        >>> stage = KerasModel.from_function(lambda x: x.sum(axis=1), {"sum": ("float32", ())})
        >>> stage.predict([1.0, 2.0])
        3.0
        """
        (kind,) = result_types(self._outputs, Columns(probability="", raw="")).values()
        batch = to_batch(self._of_one_row(value), pa.schema([("prediction", arrow_type(kind))]), 1)
        return batch.column(0)[0].as_py()

    def predictProbability(self, value: Any) -> "DenseVector":
        """Return the probability of each class for one row, computed in this process.

        Parameters
        ----------
        value : vector, array, number, str or mapping
            The row's features, as in `predict`.

        Returns
        -------
        DenseVector
            As many probabilities as `numClasses`.

        Raises
        ------
        SpecError
            If not exactly one output of the model has classes, or as in `predict`.
        FeedError
            If a value is null, or has a wrong shape.

        Examples
        --------
        >>> import keras
        >>> stage = KerasModel.from_keras(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, "sigmoid")]))
        >>> stage.predictProbability([0.0, 0.0])
        DenseVector([0.5, 0.5])
        """
        name = classifier_of(self._bundle.outputs, "predictProbability").tensor.name
        found = self._of_one_row(value)["probability"]
        return Vectors.dense((found[name] if isinstance(found, dict) else found)[0])

    def layer_outputs(self, layers: Sequence[str]) -> "KerasModel":
        """Return a stage that adds the outputs of layers, each as a column with the layer's name.

        Parameters
        ----------
        layers : sequence of str
            Names of the model's layers.

        Returns
        -------
        KerasModel

        Raises
        ------
        SpecError
            If the model has no such layer; the error lists its layers.

        Examples
        --------
        >>> import keras
        >>> layers = [keras.Input((2,)), keras.layers.Dense(3, name="hidden"), keras.layers.Dense(1)]
        >>> stage = KerasModel.from_keras(keras.Sequential(layers)).layer_outputs(["hidden"])
        >>> len(stage.transform(spark.createDataFrame([([1.0, 2.0],)], "features array<float>")).first().hidden)
        3
        """
        if unknown := [name for name in layers if name not in self._bundle.layers]:
            raise SpecError(f"there is no layer {unknown[0]!r}; the model has {list(self._bundle.layers)}")
        other = self.copy()
        other._layers = tuple(layers)
        return other

    def progress(self, total: int | None = None) -> RowProgress:
        """Count the rows of ``transform`` while Spark computes them, and draw a bar on a terminal or in a notebook.

        In the block each call of ``transform`` is counted, also that of a pipeline with this stage. Rows count when
        their task has ended, and once if Spark runs it again.

        Parameters
        ----------
        total : int, optional
            The rows that there will be; without it the bar has no end.

        Returns
        -------
        RowProgress
            A context manager, whose `rows` are those up to now.

        Raises
        ------
        SpecError
            From ``transform`` in a session of Spark Connect, which can't count.

        Examples
        --------
        >>> stage = KerasModel.from_function(lambda x: x * 2, {"twice": ("float32", ())}, featuresCol="x")
        >>> df = spark.range(1000).selectExpr("float(id) as x")
        >>> with stage.progress(total=1000) as progress:
        ...     stage.transform(df).write.format("noop").mode("overwrite").save()
        >>> progress.rows
        1000
        """
        return RowProgress(self._progress, total)

    def copy(self, extra: Any = None) -> "KerasModel":
        """Return a copy with the params in `extra` changed; both share the model."""
        other: KerasModel = super().copy(extra)
        other._given_bundle, other._layers, other._progress = self._given_bundle, self._layers, self._progress
        other.history, other._manifest = dict(self.history), self._manifest
        return other

    def export(
        self,
        path: str,
        rows: "DataFrame",
        *,
        format: str | None = None,  # noqa: A002 - as in Keras
        version: "int | Literal['next'] | None" = None,
        check_rows: int = 32,
        tolerance: float = 1e-3,
    ) -> str:
        """Write the model for use without Spark, in a directory or file on any file system.

        As a SavedModel and in the formats of other libraries it takes the feature columns by name, with the types and
        shapes of the rows, and gives the model's own outputs by name. In Keras's formats it is as it was trained.

        Parameters
        ----------
        path : str
            A path, or a URL of any file system. What is there is replaced, when the new model is complete.
        rows : DataFrame
            Rows with the feature columns, as for ``transform``.
        format : str, optional
            As for ``ctx.export``: by default the one that the path ends in.
        version : int or "next", optional
            With it the model is in a numbered directory of `path`.
        check_rows : int
            For how many of the rows the export is compared with what ``transform`` gives, before it can be seen; rows
            whose arrays are as long as those of the first one.
        tolerance : float
            How much a result may differ, in parts of the largest value of its output.

        Returns
        -------
        str
            The path of what was written, with its number.

        Raises
        ------
        SpecError
            If there is no such format, it can't express the model or gives other results, the version exists, or the
            rows do not fit.
        StorageError
            If the path can't be written.

        Examples
        --------
        >>> import keras, tempfile
        >>> import tensorflow as tf
        >>> df = spark.createDataFrame([(1.0, 2.0), (3.0, 4.0)], "a float, b float")
        >>> network = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> stage = KerasModel.from_keras(network, featuresCols=["a", "b"])
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     path = stage.export(f"{directory}/served", df, version="next")
        ...     signature = tf.saved_model.load(path).signatures["serving_default"]
        >>> sorted(signature.structured_input_signature[1]), list(signature.structured_outputs)
        (['a', 'b'], ['output_0'])
        """
        bundle = self._complete_bundle
        if bundle.kind != "keras" or self._layers:
            held = "outputs of layers" if self._layers else f"a model of the kind {bundle.kind!r}"
            raise SpecError(f"export: a stage with {held} can't be written in other formats, as one of Keras 3 can")
        check_columns(rows, self._feature_columns)
        source = RowSource(rows, self._taken_columns(rows.schema))
        to = Target(path, format, version, check_rows, tolerance)
        return export_stage(bundle, source, to, self._manifest)

    def write(self) -> StageWriter:
        """Return a writer, which `save` uses.

        Raises
        ------
        SpecError
            If the stage has no model.

        Examples
        --------
        >>> stage = KerasModel.from_function(lambda x: x * 2, {"twice": ("float32", ())})
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     stage.write().overwrite().save(directory)
        ...     KerasModel.load(directory).custom_code
        ['function.pkl']
        """
        extra = {"history": self.history, "layers": list(self._layers)}
        return StageWriter(self, self._complete_bundle, extra, {"customObjects"}, self._manifest)

    @classmethod
    def read(cls) -> StageReader["KerasModel"]:
        """Return a reader, which `load` uses."""

        def make(bundle: ModelBundle | None, metadata: Mapping[str, Any]) -> "KerasModel":
            stage = cls(bundle, history=metadata["history"])
            stage._layers, stage._manifest = tuple(metadata["layers"]), metadata["manifest"]
            return stage

        return StageReader(cls, make, {"history": dict, "layers": list, "model": dict})

    @property
    def _bundle(self) -> ModelBundle:
        if self._given_bundle is None:
            raise SpecError("this KerasModel has no model: take it from KerasEstimator.fit or from KerasModel.from_...")
        return self._given_bundle

    @property
    def _complete_bundle(self) -> ModelBundle:
        """The model with the `customObjects` among its code, which they take precedence over."""
        bundle, given = self._bundle, code_for(self.getCustomObjects())
        return replace(bundle, code=pickled({**bundle.code.load(), **given.load()})) if given else bundle

    def _applied(self, layers: tuple[str, ...] = ()) -> tuple[ModelBundle, tuple[str, ...]]:
        """Return the model as the `engine` applies it, and those of the layers that it is still asked for."""
        return for_engine(self.getEngine(), self._complete_bundle, layers)

    def _taken_schema(self, frame: "DataFrame") -> "StructType":
        """Return the feature columns of a DataFrame; raises SpecError or FeedError if they can't be taken."""
        check_columns(frame, self._feature_columns)
        schema = type(frame.schema)([frame.schema[name] for name in self._feature_columns])
        check_schema(schema)
        return schema

    def _taken_columns(self, schema: "StructType", skipping: str = "") -> TakenColumns:
        """Return the feature columns of rows with a schema, with their conversion to the model's inputs.

        Raises SpecError if these are strings where the model takes numbers, or the other way round.
        """
        columns, by_column = self._feature_columns, self._by_column
        arrays = [name for name in columns if holds_arrays(schema[name].dataType)]
        shapes = column_shapes(self._bundle.inputs, columns, arrays, by_column["shapes"])
        check_dtypes(self._bundle.inputs, _dtypes(schema, columns, shapes))
        return TakenColumns(tuple(columns), {**by_column, "shapes": shapes}, skipping=skipping)

    @property
    def _outputs(self) -> tuple[OutputInfo, ...]:
        """The model's own outputs, with the thresholds of their classes."""
        thresholds = self.getThresholds()
        return self._bundle.outputs if thresholds is None else with_thresholds(self._bundle.outputs, thresholds)

    @property
    def _output_groups(self) -> OutputGroups:
        """The model's own outputs, or those of layers, with the names of their columns."""
        if self._layers:
            return tuple(((OutputInfo(self._bundle.layers[name]),), Columns(name, "", "")) for name in self._layers)
        columns = Columns(self.getPredictionCol(), self.getProbabilityCol(), self.getRawPredictionCol())
        return ((self._outputs, columns),)

    def _of_one_row(self, value: Any) -> dict[str, Any]:
        """Return the values of the result columns for one row, by their default names, computed in this process."""
        batch = batch_of_row(value, self._feature_columns)
        taken = self._taken_columns(from_arrow_schema(batch.schema))
        features = features_of(taken, batch, by_name=self._bundle.kind != "function")
        values = call_in_pieces(loaded_here(self._applied()[0]), features, batch, None)
        return result_values(self._outputs, Columns(), values)

    @property
    def _result_types(self) -> "dict[str, DataType]":
        """The Spark types of the result columns, by name."""
        groups = [result_types(outputs, columns) for outputs, columns in self._output_groups]
        return {name: kind for group in groups for name, kind in group.items()}

    def _transform(self, dataset: "DataFrame") -> "DataFrame":
        schema = self._taken_schema(dataset)
        types = self._result_types
        existing = [name for name in types if name in dataset.columns]
        if existing:
            raise SpecError(
                f"the DataFrame has a column {existing[0]!r} already: drop it, or set another predictionCol"
            )
        taken = self._taken_columns(schema, _SKIPPING)
        plan = PredictPlan(
            model=distribute(dataset.sparkSession, *self._applied(self._layers)),
            taken=taken,
            types=struct_of(types),
            outputs=self._output_groups,
            batch_rows=self.getInferenceBatchSize(),
            invalid=self.getHandleInvalid(),
            counter=next((each.counter(dataset.sparkSession) for each in self._progress), None),
        )
        return with_results(plan, dataset)


def _dtypes(schema: "StructType", features: Sequence[str], shapes: Mapping[str, Any]) -> dict[str, str]:
    """Return the dtype of each feature column, as `check_dtypes` takes them."""
    dtypes = {}
    for name in features:
        dtype, _, text = natural_type(name, arrow_type(schema[name].dataType))
        # The bytes of a column with a shape are numbers.
        dtypes[name] = "string" if text or (dtype.kind == "O" and name not in shapes) else dtype.name
    return dtypes

"""The model: gives a DataFrame the columns that a Keras model, a SavedModel or a function makes of its rows."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
from pyspark.ml import Model
from pyspark.ml.util import MLReadable, MLReader, MLWritable, MLWriter
from pyspark.sql.types import ArrayType, BinaryType, UserDefinedType

from tensorflowonspark import storage
from tensorflowonspark.columns import arrow_type, check_schema, natural_type
from tensorflowonspark.errors import SpecError
from tensorflowonspark.ml.code import WithCode, code_for
from tensorflowonspark.ml.distribution import distribute
from tensorflowonspark.ml.inputs import TensorInfo, check_dtypes, column_shapes
from tensorflowonspark.ml.model_bundle import ModelBundle, from_model, from_saved_model
from tensorflowonspark.ml.outputs import Columns, OutputInfo, result_types
from tensorflowonspark.ml.params import ApplyParams, missing_columns
from tensorflowonspark.ml.persistence import ModelReader, ModelWriter
from tensorflowonspark.ml.predict import PredictPlan, TakenColumns, with_results
from tensorflowonspark.ml.serialization import Serialized, is_model, load_model, serialize_file, serialize_model
from tensorflowonspark.ml.summary import TrainingSummary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["KerasModel"]


class KerasModel(ApplyParams, Model, MLReadable["KerasModel"], MLWritable):
    """Applies a model to the rows of a DataFrame.

    It comes from `KerasEstimator.fit`, or from `from_keras`, `from_file`, `from_saved_model` or `from_function`.

    Parameters
    ----------
    artefact : Artefact
        The model.
    history : mapping, optional
        What each epoch of its training gave, by metric.
    **params
        What can be set: ``explainParams()`` lists it.
    """

    def __init__(
        self,
        artefact: ModelBundle | None = None,
        *,
        history: Mapping[str, Sequence[float]] | None = None,
        **params: Any,
    ) -> None:
        super().__init__()
        self._artefact = artefact
        self.history: dict[str, list[float]] = {name: list(values) for name, values in (history or {}).items()}
        self._layers: tuple[str, ...] = ()
        self.setParams(**params)

    # ---- where it comes from

    @classmethod
    def from_keras(cls, model: Any, **params: Any) -> "KerasModel":
        """Return a Keras model that is in memory, as a stage.

        Examples
        --------
        >>> import keras
        >>> network = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False)])
        >>> network.set_weights([np.array([[1.0], [2.0]])])
        >>> df = spark.createDataFrame([([1.0, 1.0],), ([0.5, 2.0],)], "features array<float>")
        >>> KerasModel.from_keras(network).transform(df).show()
        +----------+----------+
        |  features|prediction|
        +----------+----------+
        |[1.0, 1.0]|       3.0|
        |[0.5, 2.0]|       4.5|
        +----------+----------+
        <BLANKLINE>
        """
        if not is_model(model):
            raise SpecError(f"{model!r}: expected a Keras model")
        return cls(from_model(serialize_model(model), model), **params)

    @classmethod
    def from_file(cls, path: str, *, library: str = "keras", **params: Any) -> "KerasModel":
        """Return what a ``.keras`` file on any file system holds."""
        storage.use_session()
        with tempfile.TemporaryDirectory(prefix="tfos-") as scratch:
            local = Path(scratch, "model.keras")
            if not storage.fetch(path, str(local)):
                raise SpecError(f"{path}: there is no such file")
            data = local.read_bytes()
        model = load_model(Serialized(library, file=data), code_for(params.pop("customObjects", None)).load(library))
        return cls(from_model(serialize_file(library, data, model), model), **params)

    @classmethod
    def from_saved_model(
        cls, path: str, *, signature: str = "serving_default", tags: Sequence[str] = (), **params: Any
    ) -> "KerasModel":
        """Return a SavedModel's directory on any file system, as a stage with the outputs of a signature.

        `tags` are needed only where it holds several graphs.
        """
        storage.use_session()
        with tempfile.TemporaryDirectory(prefix="tfos-") as scratch:
            if not storage.fetch(path, f"{scratch}/model"):
                raise SpecError(f"{path}: there is no such directory")
            return cls(from_saved_model(f"{scratch}/model", signature, tags, path), **params)

    @classmethod
    def from_function(
        cls, function: Callable[[Any], Any], outputs: Mapping[str, tuple[str, Sequence[int]]], **params: Any
    ) -> "KerasModel":
        """Return a function as a stage.

        Parameters
        ----------
        function : callable
            Takes an array of some rows (or a dict of arrays, of several columns), and returns an array with as many
            rows, or a dict of such.
        outputs : mapping
            What it returns: the dtype and one row's shape, by name; as in ``{"scores": ("float32", (10,))}``.
        **params
            What can be set.
        """
        infos = (OutputInfo(TensorInfo(name, tuple(shape), dtype)) for name, (dtype, shape) in outputs.items())
        return cls(ModelBundle("function", cloudpickle.dumps(WithCode(function)), outputs=tuple(infos)), **params)

    # ---- what it does

    @property
    def artefact(self) -> ModelBundle:
        """The model's bytes, and what its tensors are."""
        if self._artefact is None:
            raise SpecError("this KerasModel has no model: take it from KerasEstimator.fit or from KerasModel.from_...")
        return self._artefact

    @property
    def carries(self) -> list[str]:
        """The names of the user's own classes and functions whose code is in the model; to use it runs them."""
        return self.artefact.carries

    def __repr__(self) -> str:
        """Return its uid, and what code it holds."""
        held = self._artefact.carries if self._artefact is not None else []
        return f"{self.uid} (with code of its own: {', '.join(held)})" if held else str(self.uid)

    @property
    def frozen(self) -> Serialized:
        """The model, to be trained further."""
        if self.artefact.kind not in ("keras", "tf_keras"):
            raise SpecError(f"a {self.artefact.kind} can't be trained further: it is no Keras model")
        return Serialized(self.artefact.kind, file=self.artefact.data, code=self.artefact.code)

    def keras(self) -> Any:
        """Return the Keras model itself, in this process."""
        return load_model(self.frozen, code_for(self.getOrDefault("customObjects")).load())

    @property
    def hasSummary(self) -> bool:  # noqa: N802 - Spark ML's name
        """Whether it has been trained here, so that there is a `summary`."""
        return bool(self.history)

    @property
    def summary(self) -> TrainingSummary:
        """How the training went."""
        if not self.hasSummary:
            raise SpecError("this model has no history: it was not trained by a KerasEstimator")
        return TrainingSummary(self.history)

    def features(self, layers: Sequence[str]) -> "KerasModel":
        """Return a stage that gives the outputs of some layers, each as a column of the layer's name.

        Raises
        ------
        SpecError
            If there is no such layer; it lists those that there are.
        """
        strangers = [name for name in layers if name not in self.artefact.layers]
        if strangers:
            raise SpecError(f"there is no layer {strangers[0]!r}; the model has {list(self.artefact.layers)}")
        other: KerasModel = self.copy()
        other._layers = tuple(layers)
        return other

    def _transform(self, dataset: "DataFrame") -> "DataFrame":
        columns = self.feature_columns
        missing_columns(dataset, columns)
        check_schema(type(dataset.schema)([dataset.schema[name] for name in columns]))
        artefact = self.artefact
        outputs, named = self._outputs()
        types = {}
        for each, names in zip(outputs, named, strict=True):
            types.update(result_types(each, names))
        double = [name for name in types if name in dataset.columns]
        if double:
            raise SpecError(f"the DataFrame has a column {double[0]!r} already: drop it, or set another predictionCol")
        arrays = [
            name
            for name in columns
            if isinstance(dataset.schema[name].dataType, (ArrayType, BinaryType, UserDefinedType))
        ]
        by_column = {
            "shapes": column_shapes(artefact.inputs, columns, arrays, self.getOrDefault("shapes")),
            "dtypes": self.getOrDefault("dtypes"),
            "fill": self.getOrDefault("fill"),
        }
        check_dtypes(artefact.inputs, self._dtypes(dataset, by_column["shapes"]))
        plan = PredictPlan(
            model=distribute(dataset.sparkSession, artefact, self._layers, self.getOrDefault("customObjects")),
            taken=TakenColumns(tuple(columns), by_column),
            outputs=tuple(zip(outputs, named, strict=True)),
            types=tuple(types.items()),
            batch_rows=self.optional("inferenceBatchSize"),
            invalid=self.getOrDefault("handleInvalid"),
        )
        return with_results(plan, dataset)

    def _dtypes(self, dataset: "DataFrame", shapes: Mapping[str, Any]) -> dict[str, str]:
        """Return the dtype of each column that the model is given, as a check of it takes them."""
        dtypes = {}
        for name in self.feature_columns:
            dtype, _, text = natural_type(name, arrow_type(dataset.schema[name].dataType))
            # The bytes of a column with a shape are numbers.
            dtypes[name] = "string" if text or (dtype.kind == "O" and name not in shapes) else dtype.name
        return dtypes

    def _outputs(self) -> tuple[list[tuple[OutputInfo, ...]], list[Columns]]:
        """Return the model's outputs in groups, and the columns of each group."""
        if self._layers:
            groups: list[tuple[OutputInfo, ...]] = [(OutputInfo(self.artefact.layers[name]),) for name in self._layers]
            return groups, [Columns(name, "", "") for name in self._layers]
        own = Columns(self.getPredictionCol(), self.getProbabilityCol(), self.getRawPredictionCol())
        return [self.artefact.outputs], [own]

    # ---- Spark ML's ways

    def copy(self, extra: Any = None) -> "KerasModel":
        """Return a copy with some params changed; the model itself is shared."""
        other: KerasModel = super().copy(extra)
        other._artefact, other._layers = self._artefact, self._layers
        other.history = dict(self.history)
        return other

    def write(self) -> MLWriter:
        """Return what saves it."""
        return ModelWriter(self)

    @classmethod
    def read(cls) -> MLReader["KerasModel"]:
        """Return what loads it."""
        return ModelReader(cls)

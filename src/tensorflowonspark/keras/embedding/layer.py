"""The Keras layer ``ShardedEmbedding``."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Literal

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.embedding.growing_table import GrowingTable, Growth
from tensorflowonspark.keras.embedding.ids import COMBINERS, checked, combined, hashed
from tensorflowonspark.keras.embedding.lookup import Lookup
from tensorflowonspark.keras.embedding.prediction import is_predicting_together
from tensorflowonspark.keras.embedding.row_exchange import RowExchange, cpu, join
from tensorflowonspark.keras.embedding.row_optimizers import row_optimizer
from tensorflowonspark.keras.embedding.served_rows import ServedMap, gathered, ids_of
from tensorflowonspark.keras.embedding.slot_map import EVICT
from tensorflowonspark.keras.embedding.table import Initializer, Table, initial_rows
from tensorflowonspark.keras.embedding.table_parts import read_parts, written_parts
from tensorflowonspark.keras.saving import outside_scope
from tensorflowonspark.keras.shards import is_predicting

_VECTORS = 2  # axes of a batch of vectors, which is never ragged


@keras.saving.register_keras_serializable(package="tensorflowonspark")
class ShardedEmbedding(keras.Layer):
    """An embedding whose table is divided among the workers, each with rows of its own.

    For tables that are too large for one host, or of which a step uses few rows. In each step the workers exchange ids,
    rows and gradients, all-to-all, and each updates its own rows; nothing else of the table is sent. It works in Keras
    3's ``fit``, ``evaluate`` and ``predict`` and in custom loops under ``tf.distribute.MultiWorkerMirroredStrategy``,
    with one replica per worker; and in a single process, which has all rows.

    The rows are no variable of Keras: the model's optimizer, its clipping, weight decay and gradient accumulation do
    not concern them, and ``get_weights`` leaves them out. A custom loop updates them by ``tape.gradient`` of a loss, if
    the layer is trainable, whichever variables it asks for. They are part of a checkpoint (`Context.checkpoint`), in
    which each worker writes its own, and of an export (`Context.export`).

    Parameters
    ----------
    rows : int or "dynamic"
        Number of rows of the table; ids are from 0 to ``rows - 1``. With ``"dynamic"`` ids are any int64, or any
        strings, and get rows as they come.
    dim : int
        Number of columns: the size of an embedding.
    optimizer : str, keras.optimizers.SGD, keras.optimizers.Adagrad or keras.optimizers.Adam
        Of the rows: ``"sgd"``, ``"adagrad"`` or ``"adam"`` with Keras's defaults, or an optimizer, whose learning rate
        (or schedule), epsilon and so on are taken. Only the rows that have a gradient in a step are updated (for Adam:
        *lazy*).
    combiner : str, optional
        For lists of ids along the last axis of a ragged, sparse or dense tensor: ``"sum"``, ``"mean"``, or ``"sqrtn"``,
        the sum by the root of the number of ids. An empty list gives zeros. By default each id gives its row.
    hash : bool
        Whether ids that are out of range, and strings, are replaced by a hash. By default such an id is an error.
    initializer : str or callable
        ``"uniform"`` (from `-scale` to `scale`), ``"normal"`` (with the deviation `scale`), ``"zeros"``, or a function
        that takes ids (int64, shape ``(n,)``) and returns their rows, shape ``(n, dim)``. Each worker makes its own
        rows only. The values depend on the seed and the id, not on the number of workers.
    scale : float
        Of random initial values.
    seed : int, optional
        Of the initial values; by default one that ``keras.utils.set_random_seed`` determines.
    name : str, optional
        Name of the layer, and of its rows in a checkpoint.
    dtype : str or keras.DTypePolicy, optional
        As of every layer. With a mixed policy the rows are float32, and sent as float16 or bfloat16.
    trainable : bool
        Whether the rows are updated.
    max_rows : int, optional
        With ``rows="dynamic"``, the largest number of rows of all workers together, of which each has an equal share.
        A step whose ids do not fit is an error, unless `evict` is set.
    evict : str, optional
        Which rows make room for those of new ids when there are `max_rows`: ``"lru"``, those whose last step is the
        longest ago, or ``"frequency"``, those that the fewest steps have updated. The optimizer's slots of a row go
        with it; its id is a new one from then on.
    admit : int
        With ``rows="dynamic"``, an id gets a row in the step of this number that has a gradient for it. Until then it
        reads as its initial row, and learns nothing.

    Raises
    ------
    SpecError
        If an argument is refused; and under a strategy that can't have the layer: with parameter servers, or several
        replicas on one worker.

    Examples
    --------
    >>> import numpy as np, keras
    >>> items = ShardedEmbedding(1000, 4, optimizer=keras.optimizers.SGD(0.1), initializer="zeros")
    >>> model = keras.Sequential([keras.Input((2,), dtype="int64"), items, keras.layers.Flatten(),
    ...     keras.layers.Dense(1, kernel_initializer="ones")])
    >>> model.compile("sgd", "mse")
    >>> float(model.train_on_batch(np.array([[1, 7]]), np.array([[1.0]])))
    1.0
    >>> items.lookup([7, 8]).round(2)
    array([[0.2, 0.2, 0.2, 0.2], [0. , 0. , 0. , 0. ]], dtype=float32)

    A table that grows:

    >>> words = ShardedEmbedding("dynamic", 2, optimizer="sgd", max_rows=1000, evict="lru")
    >>> model = keras.Sequential([keras.Input((1,), dtype="string"), words, keras.layers.Flatten(),
    ...     keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> _ = model.fit(tf.constant([["tea"], ["coffee"], ["tea"]]), np.ones((3, 1)), verbose=0)
    >>> words.own_rows
    2
    """

    def __init__(  # noqa: PLR0913 - all but the first are settings that are named at the call
        self,
        rows: int | Literal["dynamic"],
        dim: int,
        optimizer: Any = "adagrad",
        combiner: Literal["sum", "mean", "sqrtn"] | None = None,
        hash: bool = False,  # noqa: A002 - the name of the argument in TensorFlow's feature columns
        *,
        initializer: Initializer = "uniform",
        scale: float = 0.05,
        seed: int | None = None,
        name: str | None = None,
        dtype: Any = None,
        trainable: bool = True,
        max_rows: int | None = None,
        evict: Literal["lru", "frequency"] | None = None,
        admit: int = 1,
    ) -> None:
        if keras.backend.backend() != "tensorflow":
            raise SpecError(
                f"ShardedEmbedding needs Keras on TensorFlow, and KERAS_BACKEND is {keras.backend.backend()}: with "
                "JAX, divide a plain Embedding by keras.distribution.ModelParallel"
            )
        self._growth, is_growing = Growth(max_rows, evict, admit), rows == "dynamic"
        if not is_growing and self._growth != Growth():
            raise SpecError(f'ShardedEmbedding: max_rows, evict and admit need rows="dynamic", and rows={rows!r}')
        if is_growing and (hash or callable(initializer)):
            raise SpecError('ShardedEmbedding: rows="dynamic" takes neither hash=True nor a function as initializer')
        if evict not in (None, *EVICT) or (evict and max_rows is None):
            raise SpecError(f"ShardedEmbedding: evict={evict!r}: expected one of {EVICT} with max_rows, or None")
        given = {"rows": 1 if is_growing else rows, "max_rows": 1 if max_rows is None else max_rows}
        for argument, value in {**given, "dim": dim, "admit": admit}.items():
            if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
                raise SpecError(f"ShardedEmbedding: {argument}={value!r}: expected a number of at least 1")
        if combiner not in (None, *COMBINERS):
            raise SpecError(f"ShardedEmbedding: combiner={combiner!r}: expected one of {COMBINERS}, or None")
        if not callable(initializer):
            initial_rows(initializer, np.arange(1), 1, 0, scale)
        super().__init__(name=name, dtype=dtype, trainable=trainable)
        self.rows: Any = rows if is_growing else int(rows)
        self.dim = int(dim)
        self.combiner, self.hash = combiner, bool(hash)
        self.initializer, self.scale = initializer, float(scale)
        self.seed = random.randint(1, 10**9) if seed is None else int(seed)  # noqa: S311 - as Keras draws its own
        self.autocast = False
        self.supports_jit = False  # XLA can't compile a collective, nor the number of unique ids
        self._row_optimizer = row_optimizer(optimizer)
        self._lookup: Lookup | None = None
        self._served: tf.Variable | None = None
        self._served_map: ServedMap | None = None

    def build(self, input_shape: Any = None) -> None:  # noqa: ARG002 - Keras's name
        """Make this worker's rows; all workers take part.

        Parameters
        ----------
        input_shape : tuple, optional
            Of the ids; the rows do not depend on it.

        Raises
        ------
        SpecError
            If the strategy can't have the layer, or the table has fewer rows than there are workers.
        """
        if self._lookup is not None:
            return
        exchange = join(tf.distribute.get_strategy(), self.name)
        workers, rank = (exchange.workers, exchange.rank) if exchange else (1, 0)
        most = self._growth.max_rows if self.rows == "dynamic" else self.rows
        if most is not None and most < workers:
            raise SpecError(f"ShardedEmbedding {self.name!r}: {most} rows are fewer than the {workers} workers")
        given = self.dim, workers, rank, self._row_optimizer, self._initial_rows
        is_growing = self.rows == "dynamic"
        table = GrowingTable(self._growth, self.name, *given) if is_growing else Table(self.rows, *given)
        self._lookup = Lookup(table, exchange)
        self._anchor = self.add_weight(shape=(), initializer="zeros", dtype="float32", name="anchor")
        self.built = True

    def _initial_rows(self, ids: Any) -> Any:
        return initial_rows(self.initializer, ids, self.dim, self.seed, self.scale)

    def call(self, ids: Any) -> Any:
        """Return the rows of ids.

        Parameters
        ----------
        ids : tensor
            Dense, ragged or sparse, of any integer type (or of strings, with ``hash=True`` or ``rows="dynamic"``).

        Returns
        -------
        tensor
            Shape of `ids`, followed by `dim`; with a combiner `dim` takes the place of the last axis.
        """
        if isinstance(ids, tf.SparseTensor):
            ids = tf.RaggedTensor.from_sparse(ids)
        elif not isinstance(ids, tf.RaggedTensor):
            ids = tf.convert_to_tensor(ids)
        with cpu():
            if isinstance(table := self._built().table, GrowingTable):
                ids = tf.ragged.map_flat_values(table.known, ids)
            elif self.hash:
                ids = tf.ragged.map_flat_values(hashed, ids, self.rows)
            elif self._served is None:
                ids = checked(ids, self.rows, self.name)
            flat = ids.flat_values if isinstance(ids, tf.RaggedTensor) else tf.reshape(ids, [-1])
        rows = self._rows_of(flat if flat.dtype == tf.string else tf.cast(flat, tf.int64))
        if self.combiner:
            return combined(ids, rows, self.combiner)
        if isinstance(ids, tf.RaggedTensor):
            return ids.with_flat_values(rows)
        rows = tf.reshape(rows, tf.concat([tf.shape(ids), [self.dim]], 0))
        return rows if ids.shape.rank is None else tf.ensure_shape(rows, [*ids.shape, self.dim])

    def _rows_of(self, ids: tf.Tensor) -> tf.Tensor:
        lookup = self._built()
        if self._served is not None:
            served, keys = self._served_map, lookup.table.keys(ids)
            rows = tf.gather(self._served, keys) if served is None else served.read(self._served, keys)
            return tf.cast(rows, self.compute_dtype)
        if lookup.exchange is not None and is_predicting() and not is_predicting_together():
            raise SpecError(
                f"ShardedEmbedding {self.name!r}: all workers take part in predict, which needs a model that is "
                "built: call model.build, fit or evaluate first, on all workers"
            )
        anchor = tf.convert_to_tensor(self._anchor)
        # A tape calls the functions of all gradients of a loss, whichever variables it is asked for.
        return lookup.rows(ids, anchor if self.trainable else tf.stop_gradient(anchor), self.compute_dtype)

    def compute_output_spec(self, ids: Any) -> Any:
        """Return shape and type of the result, without a call.

        Parameters
        ----------
        ids : keras.KerasTensor or tensor
            As for `call`.

        Returns
        -------
        keras.KerasTensor
            Ragged if the result is.
        """
        is_ragged = isinstance(ids, tf.RaggedTensor) or getattr(ids, "ragged", False)
        shape = self.compute_output_shape(ids.shape)
        is_ragged = is_ragged and len(shape) > (_VECTORS if self.combiner else 0)
        options = {"ragged": True} if is_ragged else {}  # which older versions of Keras don't have
        return keras.KerasTensor(shape, self.compute_dtype, **options)

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Return the shape of the result for a shape of ids.

        Parameters
        ----------
        input_shape : tuple of int or None
            Of the ids.

        Returns
        -------
        tuple of int or None
            With `dim` after the axes of the ids, or in place of the last with a combiner.
        """
        shape = tuple(input_shape)
        return (*(shape[:-1] if self.combiner else shape), self.dim)

    @property
    def learning_rate(self) -> Any:
        """The learning rate of the rows, which can be set between steps, on all workers alike; or its schedule."""
        rate = self._row_optimizer.settings["learning_rate"]
        if callable(rate) or self._lookup is None:
            return rate
        return float(self._lookup.table.learning_rate.numpy())

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        if callable(self._row_optimizer.settings["learning_rate"]):
            raise SpecError(f"ShardedEmbedding {self.name!r}: the learning rate is a schedule, and can't be set")
        self._built().table.learning_rate.assign(rate)

    @property
    def own_rows(self) -> int:
        """The number of rows that this worker has."""
        table = self._built().table
        return len(table.map.live()) if isinstance(table, GrowingTable) else table.own

    def lookup(self, ids: Sequence[int] | Sequence[str]) -> npt.NDArray[np.float32]:
        """Return rows, outside of any step; all workers call it together, each with its own ids.

        Parameters
        ----------
        ids : sequence of int or str
            From 0 to ``rows - 1``; with ``rows="dynamic"`` any int64, or strings.

        Returns
        -------
        numpy.ndarray
            Of float32, shape ``(ids, dim)``.
        """
        table = self._built().table
        if isinstance(table, GrowingTable):
            known_ids = table.known(ids)
        else:
            known_ids = checked(tf.constant(ids, tf.int64), self.rows, self.name)
        values = self._built().rows(known_ids, tf.constant(0.0), tf.float32).numpy()
        return np.asarray(values)

    def to_embedding(self) -> keras.layers.Embedding:
        """Return a plain Embedding with all rows, in this process's memory; all workers call it.

        A ``combiner`` and ``hash`` are not part of it, and a table that grows can't be one. `Context.export` writes
        models without having the whole table in memory.

        Returns
        -------
        keras.layers.Embedding
            Outside of any strategy, and with the name of this layer.

        Raises
        ------
        SpecError
            With ``rows="dynamic"``.

        Examples
        --------
        >>> layer = ShardedEmbedding(10, 2)
        >>> layer.build()
        >>> layer.to_embedding().get_weights()[0].shape
        (10, 2)
        """
        if self.rows == "dynamic":
            raise SpecError(
                f"ShardedEmbedding {self.name!r}: a plain Embedding has no map from ids to rows: use ctx.export"
            )
        values = np.empty((self.rows, self.dim), np.float32)
        for first, block in self._blocks():
            values[first : first + len(block)] = block
        with outside_scope():
            embedding = keras.layers.Embedding(self.rows, self.dim, name=self.name, dtype=self.dtype_policy)
            embedding.build()
            embedding.set_weights([values])
        return embedding

    @property
    def _exchange(self) -> RowExchange | None:
        """The exchange with other workers; None before the layer is built, and where there are none."""
        return self._lookup.exchange if self._lookup is not None else None

    def _blocks(self) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        """Yield the rows of all workers in order, in blocks with their first id; all workers take part."""
        lookup = self._built()
        table, exchange = lookup.table, lookup.exchange
        if isinstance(table, GrowingTable):
            yield from gathered(table, exchange, "rows")
            return
        size = max(1, table.block_rows // table.workers)
        for first in range(0, -(-self.rows // table.workers), size):
            ids = np.arange(first, first + size)
            with cpu():
                own = table.values.sparse_read(tf.constant(np.minimum(ids, max(0, table.own - 1))))
                every = own[None] if exchange is None else exchange.gather_block(own)
            start = first * table.workers
            rows = np.swapaxes(every.numpy(), 0, 1).reshape(-1, self.dim)
            yield start, rows[: self.rows - start]

    def _gathered_map(self) -> ServedMap | None:
        """Return the ids of all workers for serving, if the table grows; all workers take part."""
        table = self._built().table
        if not isinstance(table, GrowingTable):
            return None
        ids = np.concatenate([block for _, block in gathered(table, self._exchange, "ids")])
        with outside_scope():
            return ServedMap(ids, self._initial_rows)

    @contextmanager
    def _serving(self, value: float) -> Iterator[None]:
        """Be a layer for serving for the duration of a block.

        It looks rows up in a variable of unknown length, which has one row of this value, and is saved as a plain
        Embedding if it is no more than that.
        """
        self._served_map = self._gathered_map()
        self._total = self._served_map.size if self._served_map else self.rows
        with outside_scope():
            rows = tf.fill([1, self.dim], value)
            self._served = tf.Variable(rows, trainable=False, shape=(None, self.dim), name=f"{self.name}_rows")
        if not self.combiner and not self.hash and self._served_map is None:
            self.__class__ = _PlainEmbedding
        try:
            yield
        finally:
            self._served = self._served_map = None
            self.__class__ = ShardedEmbedding

    def shard_parts(self) -> Iterator[tuple[str, bytes]]:
        """Yield this worker's parts of a checkpoint.

        Yields
        ------
        tuple of str and bytes
            A file name, and its contents.
        """
        return written_parts(self._built().table, self.name)

    def load_shard_parts(self, names: Sequence[str], read: Callable[[str], bytes]) -> None:
        """Take this worker's rows from a checkpoint of any number of workers.

        Parameters
        ----------
        names : sequence of str
            The files that `shard_parts` of all its workers yielded, and those of other layers.
        read : callable
            Returns the contents of a file; it is called only for those that contain rows of this worker.
        """
        read_parts(self._built().table, self.name, names, read)

    def save_own_variables(self, store: Any) -> None:
        """Save the whole table, if this process has it.

        Parameters
        ----------
        store : dict
            Receives the table as ``"0"``, and of one that grows the map as ``"1"`` and ``"2"``.

        Raises
        ------
        SpecError
            If other workers have rows too.
        """
        lookup = self._built()
        if self._served is None and lookup.exchange is not None:
            raise SpecError(
                f"ShardedEmbedding {self.name!r}: this worker has a part of the rows only, and can't save the model by "
                "itself: call ctx.export(model, path) on all workers, and ctx.checkpoint for training to resume"
            )
        served = self._served_map if self._served is not None else self._gathered_map()
        if served is not None:
            store["1"], store["2"] = served.ids.numpy(), served.places.numpy()
        own = None if self._served is None else self._served.numpy()
        store["0"] = np.concatenate([block for _, block in self._blocks()]) if own is None else own

    def load_own_variables(self, store: Any) -> None:
        """Take this worker's rows from a saved table.

        Parameters
        ----------
        store : dict
            What `save_own_variables` has saved.

        Raises
        ------
        SpecError
            If the table has another shape.
        """
        self.build()
        table, saved = self._built().table, store["0"]  # of HDF5, which reads what is indexed
        rows = len(store["1"]) if isinstance(table, GrowingTable) else self.rows
        if tuple(saved.shape) != (rows, self.dim):
            raise SpecError(
                f"ShardedEmbedding {self.name!r} has {rows} rows of {self.dim} columns, and the file has "
                f"{tuple(saved.shape)}"
            )
        if isinstance(table, GrowingTable):
            table.take_saved(ids_of(store["1"], store["2"]), saved)
            return
        for first, ids in table.blocks():
            table.assign(table.values, np.arange(first, first + len(ids)), saved[ids[0] : ids[-1] + 1 : table.workers])

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the layer; an initializer that is a function is left out.

        Returns
        -------
        dict
            For ``from_config``.
        """
        return {
            **super().get_config(),
            "rows": self.rows,
            "dim": self.dim,
            "optimizer": self._row_optimizer.config,
            "combiner": self.combiner,
            "hash": self.hash,
            "initializer": "uniform" if callable(self.initializer) else self.initializer,
            "scale": self.scale,
            "seed": self.seed,
            **asdict(self._growth),
        }

    def _built(self) -> Lookup:
        if self._lookup is None:
            raise SpecError(f"ShardedEmbedding {self.name!r} has no rows yet: build the model first, by a call or fit")
        return self._lookup


class _PlainEmbedding(ShardedEmbedding):
    """A layer that Keras saves as its own Embedding: it writes the names of a layer's class and module."""

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the plain layer."""
        config = keras.Layer.get_config(self)
        return {**config, "input_dim": self.rows, "output_dim": self.dim}


_PlainEmbedding.__name__ = keras.layers.Embedding.__name__
_PlainEmbedding.__module__ = "keras.layers"

"""Callbacks that train a model on each worker alone and make the models one in rounds: local SGD and DiLoCo.

Between rounds no worker waits for another one, so the network carries a model every hundred steps in place of a
gradient at each. The rounds themselves are in `round_state` (the outer optimizer) and `node.rounds` (the exchange).
"""

import logging
from typing import Any, Literal, get_args

import keras
import numpy as np

from tensorflowonspark.errors import ClusterError, SpecError
from tensorflowonspark.keras.round_state import (
    RoundSettings,
    RoundWorkers,
    Shared,
    Vector,
    connected,
    first_shared,
    flatten,
    in_node,
    outer_step,
    unflatten,
)

_log = logging.getLogger(__name__)
Compression = Literal["float16", "float32"]


class _Averaging(keras.callbacks.Callback):
    """Takes part in a round when ``fit`` begins, after every so many steps, before validation, and at the end."""

    exchanges_weights = True  # so that ``fit`` on several workers needs no other exchange (`exchanging_callbacks`)

    def __init__(
        self,
        every: int,
        learning_rate: float,
        momentum: float,
        compress: str,
        min_workers: int,
        timeout: float,
    ) -> None:
        super().__init__()
        _check("every", every, isinstance(every, int) and every >= 1, "a number of steps from 1")
        _check("min_workers", min_workers, isinstance(min_workers, int) and min_workers >= 1, "a number from 1")
        _check("compress", compress, compress in get_args(Compression), "'float16' or 'float32'")
        _check("timeout", timeout, timeout > 0, "seconds")
        self._every = every
        self._learning_rate = float(learning_rate)
        self._momentum = float(momentum)
        self._compress = compress
        self._min_workers = min_workers
        self._timeout = float(timeout)
        self._workers: RoundWorkers | None = None
        self._settings: RoundSettings | None = None
        self._shared: Shared | None = None
        self._first = 0  # the number of the first batch of an execution
        self._steps = 0  # since the last round
        self._training = False
        self._over = False  # the training of all workers has ended
        self._sent_before = 0
        self.rounds = 0

    @property
    def sent_bytes(self) -> int:
        """The bytes of weights that this worker has sent to others since ``fit`` began."""
        return self._workers.sent_bytes - self._sent_before if self._workers else 0

    # ---- Keras's hooks

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002 - Keras's names
        """Refuse a model that several workers train as one."""
        _require_own_model(self.model, type(self).__name__)
        self._workers = connected()
        size = self._workers.size if self._workers else 1
        _check("min_workers", self._min_workers, self._min_workers <= size, f"at most the number of workers, {size}")
        if not in_node():
            _log.warning("%s: this process is no node of a cluster, so there is nobody to average with", self._name)
        self._settings = self._shared = None
        self._steps = self.rounds = 0
        self._training, self._over = True, False
        self._sent_before = self._workers.sent_bytes if self._workers else 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Take the weights of the chief, or of the others if they train already.

        Other callbacks, which may restore a checkpoint when the training begins, have done so.
        """
        if self._settings is None and self._takes_steps:
            self._join()

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Note the first step of an execution, which may have several."""
        self._first = batch

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Average if it is time."""
        self._steps += batch - self._first + 1
        if self._steps >= self._every:
            self._average()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Average before ``fit`` validates, so that all workers validate one model."""
        if self._training:
            self._average()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Average once more, and wait for the others: all end with the same weights."""
        self._average(last=True)
        self._training = False

    # ---- rounds

    @property
    def _name(self) -> str:
        return type(self).__name__

    @property
    def _takes_steps(self) -> bool:
        """Whether there is anything to do: others to average with, or an outer optimizer."""
        return self._workers is not None or (self._learning_rate, self._momentum) != (1.0, 0.0)

    def _join(self) -> None:
        model = self.model
        trained, others = model.trainable_weights, _averaged(model)
        shapes = tuple(tuple(map(int, each.shape)) for each in [*trained, *others])
        self._settings = RoundSettings(
            shapes,
            sum(int(np.prod(shape, dtype=np.int64)) for shape in shapes[: len(trained)]),
            self._learning_rate,
            self._momentum,
            self._compress == "float16",
            self._min_workers,
            self._timeout,
            any(str(each.dtype) == "float64" for each in [*trained, *others]),
        )
        weights = self._weights()
        if self._workers is None:
            self._shared = first_shared(self._settings, weights, 0)
            return
        self._shared, self._over = self._workers.join(self._settings, weights)
        self._assign(self._shared)
        if self._over:
            _log.warning("%s: the training of the other workers has ended: this worker takes their weights", self._name)
            self.model.stop_training = True

    def _average(self, *, last: bool = False) -> None:
        if self._settings is None or self._shared is None or self._over:
            return
        weights, steps, self._steps = self._weights(), self._steps, 0
        if self._workers is None:
            change = weights - self._shared.weights
            self._shared = outer_step(self._settings, self._shared, change, self._shared.version + 1)
        else:
            self._shared, self._over = self._workers.average(weights, steps, last)
        self._assign(self._shared)
        self.rounds += 1
        if self._over and not last:
            _log.warning("%s: the training of the other workers has ended: this worker ends too", self._name)
            self.model.stop_training = True

    def _weights(self) -> Vector:
        assert self._settings is not None
        model = self.model
        weights = [*model.trainable_weights, *_averaged(model)]
        vector = flatten([keras.ops.convert_to_numpy(each) for each in weights], self._settings.dtype)
        if not np.isfinite(vector).all():
            where = self._workers.name if self._workers else "this worker"
            bad = next(
                each
                for each in weights
                if not np.isfinite(flatten([keras.ops.convert_to_numpy(each)], vector.dtype)).all()
            )
            name = getattr(bad, "path", bad.name)
            raise ClusterError(
                f"the weight {name!r} on {where} is not finite after {self._steps} steps since the last round, and "
                "would spoil those of all workers: lower the learning rate, or clip the gradients"
            )
        return vector

    def _assign(self, shared: Shared) -> None:
        assert self._settings is not None
        model = self.model
        weights = [*model.trainable_weights, *_averaged(model)]
        for weight, value in zip(weights, unflatten(self._settings.shapes, shared.weights), strict=True):
            weight.assign(value)


class LocalSGD(_Averaging):
    """Averages the weights of all workers after a number of steps, each of which is taken alone (local SGD).

    A callback for ``fit`` of a model that is made outside of any strategy, on every backend of Keras 3. When ``fit``
    begins all workers take the chief's weights. A round averages all floating-point weights, also those that are not
    trained, as BatchNorm's statistics; each worker keeps the state of its own optimizer. There is a round before each
    validation too, and one at the end, after which the weights of all workers are equal bit for bit. A worker that is
    lost is left out of the rounds, and one that comes late takes the newest weights (docs/local-sgd.md).

    Outside of a cluster, and on the only worker of one, it does nothing; outside it warns.

    Parameters
    ----------
    every : int
        Steps between two rounds. (With ``steps_per_execution``, a round follows the execution in which they are full.)
    compress : {"float32", "float16"}
        How the changes of weights are sent: float32 as they are (float64 if a weight is), float16 in half the bytes;
        blocks of values are scaled so that none overflows.
    min_workers : int
        The fewest workers of a round.
    timeout : float
        Seconds that a round waits for workers that have not reached it. Those that still compute then miss it, and join
        the next. Fewer than `min_workers` are an error then.

    Attributes
    ----------
    rounds : int
        How many rounds this worker has taken part in since ``fit`` began.
    sent_bytes : int
        How many bytes of weights it has sent to others since then.

    Raises
    ------
    SpecError
        If an argument can't be right; when ``fit`` begins, if the model belongs to a strategy of several workers.
    ClusterError
        In ``fit``, if the workers have different models or settings, too few reach a round, live workers can't exchange
        their weights, or a weight is not finite.

    Notes
    -----
    Moritz et al. 2015, *SparkNet: Training Deep Networks in Spark* (arXiv 1511.06051), whose listing has 50 steps.
    With ``every=1``, SGD and float32 this is synchronous training.

    Examples
    --------
    >>> import keras, numpy as np
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> x = np.ones((32, 2), "float32")
    >>> history = model.fit(x, x[:, 0], callbacks=[LocalSGD(every=10)], verbose=0)  # in a node, on the rows of a feed
    """

    def __init__(
        self, every: int = 50, *, compress: Compression = "float32", min_workers: int = 1, timeout: float = 120.0
    ) -> None:
        super().__init__(every, 1.0, 0.0, compress, min_workers, timeout)


class DiLoCo(_Averaging):
    """Takes the mean change of all workers' weights as the gradient of an outer optimizer with Nesterov's momentum.

    As `LocalSGD`, with an outer optimizer: it needs fewer rounds for the same accuracy, and takes its steps on one
    worker alone too. Weights that are not trained, as BatchNorm's statistics, are averaged. Its momentum is not in
    checkpoints: it begins at zero after a restart of all nodes.

    Parameters
    ----------
    every : int
        Steps between two rounds. (With ``steps_per_execution``, a round follows the execution in which they are full.)
    outer_learning_rate : float
        Of the outer optimizer, above 0.
    outer_momentum : float
        Of the outer optimizer, from 0 to below 1.
    compress : {"float16", "float32"}
        As for `LocalSGD`.
    min_workers : int
        As for `LocalSGD`.
    timeout : float
        As for `LocalSGD`.

    Attributes
    ----------
    rounds : int
        How many rounds this worker has taken part in since ``fit`` began.
    sent_bytes : int
        How many bytes of weights it has sent to others since then.

    Raises
    ------
    SpecError, ClusterError
        As for `LocalSGD`.

    Notes
    -----
    Douillard et al. 2023, *DiLoCo: Distributed Low-Communication Training of Language Models* (arXiv 2311.08105), with
    the changes sent as float16 as in OpenDiLoCo (Jaghouar et al. 2024, arXiv 2407.07852). The papers use AdamW inside
    and the defaults here outside.

    Examples
    --------
    >>> import keras, numpy as np
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    >>> model.compile(keras.optimizers.AdamW(1e-3), "mse")
    >>> x = np.ones((64, 2), "float32")
    >>> diloco = DiLoCo(every=2)
    >>> history = model.fit(x, x[:, 0], batch_size=16, callbacks=[diloco], verbose=0)
    >>> diloco.rounds  # one after every two of the four steps, and one at the end
    3
    """

    def __init__(
        self,
        every: int = 100,
        *,
        outer_learning_rate: float = 0.7,
        outer_momentum: float = 0.9,
        compress: Compression = "float16",
        min_workers: int = 1,
        timeout: float = 120.0,
    ) -> None:
        _check("outer_learning_rate", outer_learning_rate, outer_learning_rate > 0, "a number above 0")
        _check("outer_momentum", outer_momentum, 0 <= outer_momentum < 1, "a number from 0 to below 1")
        super().__init__(every, outer_learning_rate, outer_momentum, compress, min_workers, timeout)


def _check(name: str, value: object, holds: bool, expected: str) -> None:
    if not holds:
        raise SpecError(f"{name}={value!r}: expected {expected}")


def _require_own_model(model: Any, name: str) -> None:
    """Raise `SpecError` if the workers train one model together at each step, or the model is not one of Keras 3."""
    if not isinstance(model, keras.Model):
        raise SpecError(
            f"{name} is a callback of Keras 3, and the model a {type(model).__module__}: unset TF_USE_LEGACY_KERAS"
        )
    strategy = getattr(model, "distribute_strategy", None)
    kind = type(strategy).__name__
    if strategy is not None and ("MultiWorker" in kind or "ParameterServer" in kind or "CollectiveAllReduce" in kind):
        raise SpecError(
            f"{name} averages models that are trained apart, and this one belongs to a {kind}, which has its workers "
            "take each step together: make the model outside of the strategy's scope, or leave the callback out"
        )
    distribution = keras.distribution.distribution()
    if distribution is not None:
        raise SpecError(
            f"{name} averages models that are trained apart, and keras.distribution has a "
            f"{type(distribution).__name__}: call keras.distribution.set_distribution(None) before the model is made, "
            'and set env={"TFOS_JAX_ALONE": "1"} on the cluster, so that its workers form no JAX program'
        )


def _averaged(model: Any) -> list[Any]:
    """Return the floating-point weights that are not trained, as BatchNorm's statistics."""
    return [each for each in model.non_trainable_weights if "float" in str(each.dtype)]

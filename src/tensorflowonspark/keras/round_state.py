"""Rounds in which the models of several workers become one: the state that they share, and its outer optimizer.

The weights of a model are one flat vector here, of float64 if any of them is, else of float32. Each worker trains on
its own, and in a round sends by how much its weights have changed since the last one. The outer optimizer takes the
mean of these changes as its (negative) gradient, on all workers alike: numpy's operations have the same result
everywhere.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Shared:
    """What all workers have in common after a round."""

    version: int  # the number of the round
    weights: Vector  # all, those that are trained first; of one dimension
    momentum: Vector  # the outer optimizer's, of the weights that are trained; empty if it has none


@dataclass(frozen=True)
class RoundSettings:
    """What the workers of a round must agree on, and how long they wait."""

    shapes: tuple[tuple[int, ...], ...]  # of each weight
    trained: int  # values that are trained; the others, such as BatchNorm's statistics, are averaged
    learning_rate: float  # of the outer optimizer, as the momentum
    momentum: float
    half: bool  # whether changes are sent as float16
    min_workers: int  # the fewest of a round
    timeout: float  # seconds that a worker waits for the others
    double: bool = False  # whether the vectors are of float64

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the vectors."""
        return np.dtype(np.float64 if self.double else np.float32)

    @property
    def signature(self) -> str:
        """A text that is the same on all workers whose models and settings are."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:16]


class RoundWorkers(Protocol):
    """The workers that train together, as one of them sees them."""

    name: str  # of this worker, and its host, for errors
    size: int  # how many workers the cluster has
    sent_bytes: int  # of weights, to other workers

    def join(self, settings: RoundSettings, weights: Vector) -> tuple[Shared, bool]:
        """Begin the training; return what all share, and whether the training of the others has ended."""

    def average(self, weights: Vector, steps: int, last: bool) -> tuple[Shared, bool]:
        """Take part in a round; return what all share after it, and whether the training of all has ended with it.

        `steps` is the number that this worker has taken since the last round. With `last` it takes no further step, and
        waits until the training of all workers has ended.
        """


@dataclass
class _Connection:
    """What callbacks ask when a training begins: the program makes them, and can't pass it to them."""

    workers: RoundWorkers | None = None  # with which this process takes part in rounds, itself among them
    is_node: bool = False  # others can take part in no rounds


_connection = _Connection()  # of this process, which is one worker


def connect(workers: RoundWorkers | None) -> None:
    """Have the callbacks of this node take part in rounds with other workers, or with none."""
    _connection.workers, _connection.is_node = workers, True


def connected() -> RoundWorkers | None:
    """Return the workers of this process's cluster; None outside of a node, and for a worker without others."""
    return _connection.workers


def in_node() -> bool:
    """Return whether this process is a node."""
    return _connection.is_node


def first_shared(settings: RoundSettings, weights: Vector, version: int) -> Shared:
    """Return what a worker shares that is the first."""
    size = settings.trained if settings.momentum else 0
    return Shared(version, weights, np.zeros(size, settings.dtype))


def outer_step(settings: RoundSettings, shared: Shared, mean: Vector, version: int) -> Shared:
    """Return what all workers share after a round, by the mean of the changes of their weights.

    This is stochastic gradient descent with Nesterov's momentum, whose gradient is the negative mean (DiLoCo, Douillard
    et al. 2023, arXiv 2311.08105, algorithm 1). With a learning rate of 1 and no momentum it is the mean of the weights
    (SparkNet, Moritz et al. 2015, arXiv 1511.06051). Weights that are not trained are averaged. A round without any
    change of trained weights, as one that precedes a validation and follows another round at once, is no outer step.

    Examples
    --------
    >>> settings = RoundSettings(((2,), (1,)), 2, 0.5, 0.9, half=False, min_workers=1, timeout=60.0)
    >>> shared = first_shared(settings, np.zeros(3, np.float32), version=0)
    >>> outer_step(settings, shared, np.ones(3, np.float32), version=1).weights.round(2).astype(str).tolist()
    ['0.95', '0.95', '1.0']
    """
    weights, momentum = shared.weights + mean, shared.momentum
    trained = slice(settings.trained)
    if not mean[trained].any():
        return Shared(version, weights, momentum)
    if settings.momentum:
        momentum = settings.momentum * momentum + mean[trained]
        weights[trained] = shared.weights[trained] + settings.learning_rate * (
            mean[trained] + settings.momentum * momentum
        )
    elif settings.learning_rate != 1.0:
        weights[trained] = shared.weights[trained] + settings.learning_rate * mean[trained]
    return Shared(version, weights, momentum)


def flatten(values: Sequence[Any], dtype: np.dtype[Any]) -> Vector:
    """Return the values of all weights as one vector."""
    flat = [np.asarray(each, dtype).ravel() for each in values]
    return np.concatenate(flat) if flat else np.zeros(0, dtype)


def unflatten(shapes: Sequence[tuple[int, ...]], vector: Vector) -> list[Vector]:
    """Return the values of each weight of a vector."""
    sizes = [int(np.prod(shape, dtype=np.int64)) for shape in shapes]
    parts = np.split(vector, np.cumsum(sizes)[:-1]) if sizes else []
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

"""Handwritten digits and a network of numpy: what the workers of the benchmark of local SGD train."""

from itertools import pairwise

import numpy as np

from tensorflowonspark.keras.round_state import RoundSettings, first_shared, outer_step

ENOUGH = 0.95  # accuracy on held-out digits
RATE, BATCH = 0.1, 16


class Digits:
    """The rows of all workers, and a network of fully connected layers as one vector.

    Parameters
    ----------
    workers : int
        Among which the rows to train on are dealt out.
    seed : int
        Of the division, the initial weights and the order of rows.
    hidden : sequence of int
        The sizes of the hidden layers.
    """

    def __init__(self, workers, seed, hidden=(64,)):
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        order = np.random.default_rng(seed).permutation(len(labels))
        images, labels = (images[order] / 16).astype(np.float32), labels[order]
        self._test = images[:360], labels[:360]
        self._shares = [(images[360 + each :: workers], labels[360 + each :: workers]) for each in range(workers)]
        self._generators = [np.random.default_rng([seed, each]) for each in range(workers)]
        sizes = [64, *hidden, 10]
        self.shapes = tuple(shape for rows, columns in pairwise(sizes) for shape in ((rows, columns), (columns,)))
        drawn = np.random.default_rng(seed)
        self.initial = np.concatenate(
            [
                (drawn.normal(size=shape) * np.sqrt(2 / shape[0]) * (len(shape) > 1)).astype(np.float32).ravel()
                for shape in self.shapes
            ]
        )

    def _layers(self, vector):
        sizes = [int(np.prod(shape)) for shape in self.shapes]
        parts = np.split(vector, np.cumsum(sizes)[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def _forward(self, layers, rows):
        outputs = [rows]
        for at in range(0, len(layers), 2):
            rows = rows @ layers[at] + layers[at + 1]
            if at + 2 < len(layers):
                rows = np.maximum(rows, 0)
            outputs.append(rows)
        return outputs

    def train(self, number, vector, steps):
        """Return the weights after some steps of one worker."""
        vector = vector.copy()
        layers = self._layers(vector)  # views
        images, labels = self._shares[number]
        for _ in range(steps):
            rows = self._generators[number].integers(0, len(labels), BATCH)
            outputs = self._forward(layers, images[rows])
            scores = np.exp(outputs[-1] - outputs[-1].max(axis=1, keepdims=True))
            change = scores / scores.sum(axis=1, keepdims=True)
            change[np.arange(BATCH), labels[rows]] -= 1
            change /= BATCH
            for at in range(len(layers) - 2, -1, -2):
                back = change @ layers[at].T * (outputs[at // 2] > 0)
                layers[at] -= RATE * (outputs[at // 2].T @ change)
                layers[at + 1] -= RATE * change.sum(axis=0)
                change = back
        return vector

    def accuracy(self, vector):
        """Return the part of held-out digits that are recognised."""
        images, labels = self._test
        return float((self._forward(self._layers(vector), images)[-1].argmax(axis=1) == labels).mean())

    def settings(self, *, outer, half, min_workers=1, timeout=60.0):
        """Return the settings of rounds: of DiLoCo with an `outer` optimizer, of LocalSGD without."""
        rate, momentum = (0.7, 0.9) if outer else (1.0, 0.0)
        return RoundSettings(self.shapes, len(self.initial), rate, momentum, half, min_workers, timeout)


def steps_to_accuracy(workers, every, seed, *, outer, most=3000, hidden=(64,)):
    """Return how many steps each worker takes until the shared weights are good enough; no exchange, one process."""
    digits = Digits(workers, seed, hidden)
    settings = digits.settings(outer=outer, half=False)
    shared = first_shared(settings, digits.initial, 0)
    for steps in range(every, most + 1, every):
        changes = [digits.train(each, shared.weights, every) - shared.weights for each in range(workers)]
        shared = outer_step(settings, shared, np.mean(changes, axis=0, dtype=np.float32), shared.version + 1)
        if digits.accuracy(shared.weights) >= ENOUGH:
            return steps
    return None


def program(digits, settings, every, *, rounds=None, on_round=lambda: None):
    """Return the program of a worker in a `tests.support.rounds.Group`.

    Parameters
    ----------
    digits : Digits
        The rows and the network.
    settings : RoundSettings
        From `Digits.settings`.
    every : int
        Steps between two rounds.
    rounds : int, optional
        How many; by default as many as the accuracy needs, and at most 3,000 steps.
    on_round : callable, optional
        Called by the first worker after each round.
    """

    def run(member):
        number = member._setup.number
        shared, over = member.join(settings, digits.initial)
        taken = 0
        while not over:
            weights = digits.train(number, shared.weights, every)
            taken += 1
            last = taken == (rounds or 3000 // every)
            shared, over = member.average(weights, every, last)
            if number == 0:
                on_round()
            if not rounds and not last and digits.accuracy(shared.weights) >= ENOUGH:
                break  # all workers have the same weights, and find the same
        return taken * every, digits.accuracy(shared.weights)

    return run

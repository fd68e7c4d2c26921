"""A copy of TensorFlow's variables in memory, from which a checkpoint is written while the training goes on."""

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tensorflow as tf

_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


def variable_of(item: Any) -> Any:
    """Return the variable of TensorFlow that an object of a state is, or that a variable of Keras 3 holds; or None."""
    import tensorflow as tf

    of_keras = getattr(sys.modules.get("keras"), "Variable", None)
    held = item.value if of_keras is not None and isinstance(item, of_keras) else item
    return held if isinstance(held, tf.Variable) else None


def variables_of(state: "tf.train.Checkpoint") -> list[Any]:
    """Return the variables of a state, each once, in an order that is the same on all workers."""
    import tensorflow as tf

    found = {
        id(each): each
        for item in tf.train.TrackableView(state).descendants()
        if (each := variable_of(item)) is not None
    }
    return list(found.values())


class StateCopy:
    """Variables that have the values that those of a state had at the last `update`.

    They are found under the same names as these, so that a file of one is restored into the other.
    """

    def __init__(self, state: "tf.train.Checkpoint") -> None:
        self._pairs: list[tuple[Any, Any]] = []  # the copy of each variable, and it
        # A thread of its own is in no scope of a strategy, which would divide the copies too.
        with ThreadPoolExecutor(1) as thread:
            self._state = thread.submit(self._copy_of, state, {}).result()

    def _copy_of(self, item: Any, known: dict[int, Any]) -> Any:
        import tensorflow as tf

        if id(item) in known:
            return known[id(item)]
        variable = variable_of(item)
        if variable is not None:
            with tf.device("CPU:0"):
                copy = tf.Variable(tf.zeros(variable.shape, variable.dtype), trainable=False)
            known[id(item)] = copy
            self._pairs.append((copy, variable))
            return copy
        copy = known[id(item)] = tf.train.Checkpoint()
        for name, child in tf.train.TrackableView(item).children(item).items():
            setattr(copy, name, self._copy_of(child, known))
        return copy

    def is_of(self, variables: list[Any]) -> bool:
        """Return whether these are the variables that are copied."""
        return {id(each) for each in variables} == {id(each) for _, each in self._pairs}

    def update(self) -> None:
        """Copy the values; workers that train together all do so."""
        for copy, variable in self._pairs:
            copy.assign(variable)

    def write(self, prefix: str, options: "tf.train.CheckpointOptions") -> None:
        """Write a file of the state."""
        self._state.write(prefix, options)


def has_variables_alone(prefix: str, variables: list[Any]) -> bool:
    """Return whether a file that was written of a state has the values of these variables, and of nothing else."""
    import tensorflow as tf

    found = [(name, tuple(shape)) for name, shape in tf.train.list_variables(prefix) if name != _GRAPH]
    shapes = sorted(tuple(each.shape) for each in variables if each.shape.is_fully_defined())
    return all(name.endswith(_VALUE) for name, _ in found) and sorted(shape for _, shape in found) == shapes

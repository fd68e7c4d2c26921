"""A copy of TensorFlow's variables in memory, from which a checkpoint is written while the training goes on."""

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tensorflow as tf

_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


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


def layout_of(state: "tf.train.Checkpoint") -> list[tuple[str, ...]]:
    """Return the names under which each object of a state has others: where they are equal, so are variables' names."""
    import tensorflow as tf

    view = tf.train.TrackableView(state)
    return [tuple(view.children(each)) for each in view.descendants()]


def read(variables: list[Any]) -> None:
    """Take part in reading variables, of which TensorFlow makes some of the values of all workers."""
    import tensorflow as tf

    for each in variables:
        tf.convert_to_tensor(each)


class StateCopy:
    """Variables that have the values that those of a state had at the last `update`.

    They are found under the same names as these, so that a file of one is restored into the other.
    """

    def __init__(self, state: "tf.train.Checkpoint") -> None:
        self._copies: dict[int, Any] = {}  # of each variable, by its id
        # A thread of its own is in no scope of a strategy, which would divide the copies too.
        with ThreadPoolExecutor(1) as thread:
            self._state = thread.submit(self._copy_of, state, {}).result()

    def _copy_of(self, item: Any, known: dict[int, Any]) -> Any:
        import tensorflow as tf

        variable = variable_of(item)
        if variable is not None:
            if id(variable) not in self._copies:
                with tf.device("CPU:0"):
                    copy = tf.Variable(tf.zeros(variable.shape, variable.dtype), trainable=False)
                self._copies[id(variable)] = copy
            return self._copies[id(variable)]
        if id(item) in known:
            return known[id(item)]
        copy = known[id(item)] = tf.train.Checkpoint()
        for name, child in tf.train.TrackableView(item).children(item).items():
            setattr(copy, name, self._copy_of(child, known))
        return copy

    def update(self, variables: list[Any]) -> None:
        """Copy the values of the variables; what workers train together, the others `read` meanwhile."""
        for each in variables:
            self._copies[id(each)].assign(each)

    def write(self, prefix: str, options: "tf.train.CheckpointOptions") -> None:
        """Write a file of the state."""
        self._state.write(prefix, options)


def has_variables_alone(prefix: str, variables: list[Any]) -> bool:
    """Return whether a file that was written of a state has the values of these variables, and of nothing else."""
    import tensorflow as tf

    listed = tf.train.list_variables(prefix)
    found = sorted(tuple(shape) for name, shape in listed if name.endswith(_VALUE))
    shapes = sorted(tuple(each.shape) for each in variables if each.shape.is_fully_defined())
    return found == shapes and len(listed) == len(found) + 1  # with the description of the objects

"""The state of a program in local files: written, read, and checked against the program's variables."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from tensorflowonspark.errors import CheckpointError
from tensorflowonspark.keras.jax.jax_processes import current
from tensorflowonspark.keras.jax.training_state import JaxState, is_state
from tensorflowonspark.node.checkpoint.state_copy import (
    StateCopy,
    has_variables_alone,
    layout_of,
    read,
    variable_of,
    variables_of,
)

if TYPE_CHECKING:
    import tensorflow as tf

_PREFIX = "state"
_REASON_LENGTH = 400  # characters of TensorFlow's reason


class StateWriter:
    """Writes the states of one training to local directories.

    With `copies`, what can be written later is copied to memory first. Of TensorFlow that are variables: a state that
    has anything else, as a table, is written at once; so is the first one, which shows that, and one that differs from
    the last in its variables or their names.
    """

    def __init__(self, node: str, copies: bool = False) -> None:
        self._node = node
        self._copies = copies
        self._copied: list[Any] = []  # the variables of the last state, if it has nothing else
        self._layout: list[tuple[str, ...]] = []  # of that state
        self._copy: StateCopy | None = None

    def write(self, state: Any, directory: str, *, keep: bool, beside: bool = False) -> Callable[[], None]:
        """Write the variables of `state`, as they are now; return what has yet to be called for that.

        Without `keep` this worker only takes part in the writing. With `beside` it is written later, if it can be.
        """
        if is_state(state):
            if not keep:  # each process of JAX has the whole state
                return _nothing
            write = JaxState.of(state).writer(copied=beside)
            if beside:
                return partial(write, directory)
            write(directory)
            return _nothing
        prefix, options = f"{directory}/{_PREFIX}", _io_options(self._node)
        if beside and self._can_copy(state, variables := variables_of(state)):
            if not keep:
                read(variables)
                return _nothing
            self._copy = self._copy or StateCopy(state)
            self._copy.update(variables)
            return partial(self._copy.write, prefix, options)
        state.write(prefix, options)
        if self._copies:
            variables = variables_of(state)
            self._copied = variables if has_variables_alone(prefix, variables) else []
            self._layout, self._copy = layout_of(state), None
        return _nothing

    def _can_copy(self, state: Any, variables: list[Any]) -> bool:
        """Return whether these are the variables of the last state, under the same names, and it has nothing else."""
        is_same = [id(each) for each in variables] == [id(each) for each in self._copied]
        return bool(variables) and is_same and layout_of(state) == self._layout


def _nothing() -> None:
    """Do nothing: all is written."""


def read_state(state: Any, directory: str, node: str, source: str, *, is_built: bool) -> bool:
    """Read values from a local directory into `state`; return whether some wait for variables that don't exist yet.

    With `is_built` all variables have been created, so that a value without one is an error: a `CheckpointError`, as is
    a damaged file. `source` is the checkpoint's path, for that.
    """
    if is_state(state):
        JaxState.of(state).read(directory, source)
        return False
    import tensorflow as tf

    try:
        status = state.read(f"{directory}/{_PREFIX}", _io_options(node))
        status.assert_existing_objects_matched()
        if is_built:
            status.assert_consumed()
    except (AssertionError, ValueError, tf.errors.OpError) as error:
        if isinstance(error, tf.errors.DataLossError) or "corrupt" in str(error):  # written without checksums
            raise CheckpointError(
                f"{source} is damaged: remove it, and training resumes from the one before ({_shorten(error)})"
            ) from error
        raise CheckpointError(
            f"{source} does not fit the program's model: train the one that wrote it, give another directory, or "
            f"remove this one to start from the beginning ({_shorten(error)})"
        ) from error
    try:
        status.assert_consumed()
    except AssertionError:
        status.expect_partial()  # without a word at the end, if they are never created
        return True
    return False


def is_shared(state: Any) -> bool:
    """Return whether workers train these variables together."""
    if is_state(state):
        return current() is not None
    import tensorflow as tf

    found = [
        getattr(variable_of(each), "distribute_strategy", None) for each in tf.train.TrackableView(state).descendants()
    ]
    kind = tf.distribute.MultiWorkerMirroredStrategy
    return any(isinstance(each, kind) for each in (tf.distribute.get_strategy(), *found))


def _io_options(node: str) -> "tf.train.CheckpointOptions":
    """Return options by which this process, not the parameter servers on their hosts, writes and reads the files."""
    import tensorflow as tf

    job, index = node.split(":")
    device = f"/job:{job}/replica:0/task:{index}/device:CPU:0"
    known = [each.name for each in tf.config.list_logical_devices("CPU")]
    return tf.train.CheckpointOptions(experimental_io_device=device if device in known else None)


def _shorten(error: BaseException) -> str:
    """Return the beginning of TensorFlow's reason, which may name every variable, as one line."""
    return " ".join(str(error).split())[:_REASON_LENGTH]

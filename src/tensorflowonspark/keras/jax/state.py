"""The state of a training on JAX as a file of arrays, for checkpoints.

The file is a zip archive with an entry for each variable, in the order in which the model has them, so that it can be
restored by any number of workers and with any distribution: variables that are divided among the workers are collected
one by one, and divided anew when they are read.
"""

import io
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tensorflowonspark.errors import CheckpointError, SpecError
from tensorflowonspark.keras.archives import open_archive, write_archive
from tensorflowonspark.keras.jax.placement import gathered, is_sharded

_FILE, _VARIABLES = "state.zip", "variables.json"


def is_state(state: Any) -> bool:
    """Return whether a state that a program passed is of a model on JAX, and none of TensorFlow."""
    return isinstance(state, JaxState) or (hasattr(state, "stateless_call") and hasattr(state, "jax_state_sync"))


class JaxState:
    """All state of the training of a Keras model: weights, the optimizer's variables, and seeds.

    Parameters
    ----------
    model : keras.Model
        A model that is built; its optimizer is built here, if it has one.
    """

    def __init__(self, model: Any) -> None:
        if not model.built:
            raise SpecError("the model is not built yet: give it an Input, or call it once, before its checkpoint")
        self._model = model

    @classmethod
    def of(cls, state: Any) -> "JaxState":
        """Return a state, given that or a model."""
        return state if isinstance(state, JaxState) else cls(state)

    @property
    def _variables(self) -> list[Any]:
        model = self._model
        optimizer = getattr(model, "optimizer", None)
        if optimizer is not None and not optimizer.built:
            optimizer.build(model.trainable_variables)
        metrics = {id(each) for each in model.metrics_variables}
        own = [each for each in model.variables if id(each) not in metrics]
        variables = [*own, *(optimizer.variables if optimizer is not None else [])]
        return list({id(each): each for each in variables}.values())

    def write(self, directory: str, *, keep: bool) -> None:
        """Write the state to a directory of this machine; all workers must call it.

        Parameters
        ----------
        directory : str
            The directory.
        keep : bool
            Whether this worker writes; the others only take part.
        """
        self._model.jax_state_sync()  # within an epoch Keras holds the values elsewhere
        variables = self._variables
        described = [{"path": each.path, "shape": list(each.shape), "dtype": str(each.dtype)} for each in variables]
        if not keep:
            for each in variables:
                if is_sharded(each.value):
                    gathered(each.value)
            return
        # As bytes, since NumPy's files have no bfloat16.
        values = (np.ascontiguousarray(gathered(each.value)).reshape(-1).view(np.uint8) for each in variables)
        write = partial(np.lib.format.write_array, allow_pickle=False)
        write_archive(Path(directory, _FILE), _VARIABLES, described, values, write)

    def read(self, directory: str, source: str) -> None:
        """Read the state from a directory of this machine.

        Parameters
        ----------
        directory : str
            The directory.
        source : str
            Path of the checkpoint, for errors.

        Raises
        ------
        CheckpointError
            If a file is damaged, or the values do not fit the model.
        """
        self._model.jax_state_sync()  # within an epoch: Keras then takes the values of the variables for its next step
        variables = self._variables
        with open_archive(directory, _FILE, source) as archive:
            _check_fit(json.loads(archive.read(_VARIABLES)), variables, source)
            for number, each in enumerate(variables):
                flat = np.lib.format.read_array(io.BytesIO(archive.read(str(number))), allow_pickle=False)
                each.assign(flat.view(np.asarray(each.value.dtype.type(0)).dtype).reshape(each.shape))


def _check_fit(written: list[dict[str, Any]], variables: list[Any], source: str) -> None:
    wanted = [(list(each.shape), str(each.dtype)) for each in variables]
    found = [(each["shape"], each["dtype"]) for each in written]
    if found == wanted:
        return
    first = next((number for number, pair in enumerate(zip(found, wanted, strict=False)) if pair[0] != pair[1]), None)
    differing = (
        f"it has {len(found)} variables, the model {len(wanted)}"
        if first is None
        else f"{written[first]['path']} has {found[first]}, the model's {variables[first].path} has {wanted[first]}"
    )
    raise CheckpointError(
        f"{source} does not fit the program's model: train the one that wrote it, give another directory, or remove "
        f"this one to start from the beginning ({differing})"
    )

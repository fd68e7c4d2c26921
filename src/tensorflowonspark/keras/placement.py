"""A layer on the device of another node: model parallelism by hand."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import keras

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.inference import takes_training

_NODE = re.compile(r"(chief|worker|ps):\d+")


@keras.saving.register_keras_serializable("tensorflowonspark")
class Placed(keras.layers.Wrapper):
    """A layer whose weights are on another node, which also computes it.

    Its optimizer's variables are beside the weights. The other node serves (`Context.join_server`), and the program of
    the chief is connected to it (`Context.connect`). In a process that is connected to no other one, as where a saved
    model is loaded, the layer is an ordinary one.

    Parameters
    ----------
    layer : keras.layers.Layer
        The layer, or a model.
    node : str
        The name of the node, as ``"worker:1"``.
    name : str, optional
        The name of this layer; the other one has its own.
    trainable : bool
        Whether the weights are trained.
    dtype : str or keras.DTypePolicy, optional
        As for any layer of Keras.

    Raises
    ------
    SpecError
        If the node has no such name, or Keras's backend is not TensorFlow. When the layer is built: if the program is
        connected to other nodes, and not to this one.

    Examples
    --------
    In the function of a cluster with two workers::

        if not ctx.is_chief:
            ctx.join_server()
        ctx.connect()
        model = keras.Sequential(
            [
                tfos.keras.Placed(keras.layers.Embedding(1_000_000, 64), "worker:1"),
                keras.layers.GlobalAveragePooling1D(),
                keras.layers.Dense(1),
            ]
        )
    """

    def __init__(
        self, layer: Any, node: str, *, name: str | None = None, trainable: bool = True, dtype: Any = None
    ) -> None:
        if keras.backend.backend() != "tensorflow":
            raise SpecError(
                f"Placed(..., {node!r}) needs Keras's TensorFlow backend, and this is {keras.backend.backend()!r}: on "
                "JAX use keras.distribution"
            )
        if not isinstance(node, str) or not _NODE.fullmatch(node):
            raise SpecError(f"Placed(..., {node!r}): expected the name of a node, as 'worker:1' or 'chief:0'")
        super().__init__(layer, name=name, trainable=trainable, dtype=dtype)
        self.node = node
        self.supports_masking = layer.supports_masking
        self.supports_jit = False  # XLA compiles for one process

    def build(self, input_shape: Any = None) -> None:
        """Build the layer on its node (called by Keras).

        Parameters
        ----------
        input_shape : tuple
            The shape of the inputs, with None for the rows.
        """
        with self._on_node():
            super().build(input_shape)

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Call the layer on its node (called by Keras).

        Parameters
        ----------
        inputs : tensor
            The inputs.
        training : bool, optional
            Whether this is a step of training.
        mask : tensor, optional
            The mask of the inputs.

        Returns
        -------
        tensor
            The outputs, which TensorFlow copies to where they are used.
        """
        options: dict[str, Any] = {}
        if takes_training(self.layer):
            options["training"] = training
        if mask is not None and self.supports_masking:
            options["mask"] = mask
        with self._on_node():
            return self.layer(inputs, **options)

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Return the layer's own mask (called by Keras).

        Parameters
        ----------
        inputs : tensor
            The inputs.
        previous_mask : tensor, optional
            Their mask.

        Returns
        -------
        tensor or None
            The mask of the outputs.
        """
        return self.layer.compute_mask(inputs, previous_mask)

    def get_config(self) -> dict[str, Any]:
        """Return the configuration, from which Keras makes the layer anew.

        Returns
        -------
        dict
            The layer's own configuration, and the node.
        """
        return {**super().get_config(), "node": self.node}

    @contextmanager
    def _on_node(self) -> Iterator[None]:
        import tensorflow as tf

        device = self._device()
        if device is None:
            yield
            return
        with tf.device(device):
            yield
        for variable in self.layer.variables:
            # `fit` builds a model of unknown input symbolically, and makes its variables afterwards.
            if getattr(variable, "_value", variable) is None:
                variable._deferred_initialize = partial(_initialize, variable, device)

    def _device(self) -> str | None:
        from tensorflowonspark.keras.devices import node_devices

        devices = node_devices()
        if devices and self.node not in devices:
            raise SpecError(
                f"layer {self.name!r} is placed on {self.node}, and this program is connected to "
                f"{', '.join(devices)}: place it on one of these"
            )
        return devices.get(self.node)


def _initialize(variable: Any, device: str) -> None:
    import tensorflow as tf

    del variable._deferred_initialize  # the method of its class again
    with tf.device(device):
        variable._deferred_initialize()

"""Weights of large Keras models in memory once per executor, whose Python workers map one file.

The first worker that needs a model unpacks it into the executor's directory, with every array of its weights at an
address that TensorFlow and JAX take as it is. All workers load it from there, in Keras's own way but for two things:
arrays of weights are views of the mapped file, not copies; and variables are made with these, without initial values.
What a worker writes to a page of its own map, as an update of a variable does, no other worker sees.
"""

import fcntl
import logging
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tensorflowonspark.keras.hooks import keras_backend
from tensorflowonspark.ml.model_bundle import ModelBundle
from tensorflowonspark.ml.sent_models import SentModel
from tensorflowonspark.ml.serialization import load_file
from tensorflowonspark.supervisor.host import local_directory

_log = logging.getLogger(__name__)

SHARED_BYTES = 64 << 20  # of a model's file, from which on it is shared
_VIEWED_BYTES = 64 << 10  # of an array, from which on it is a view
_ALIGNMENT = 64  # of an array's address, which TensorFlow and JAX need
_WEIGHTS = "model.weights.h5"  # Keras's name for them in a model's file and directory
_NAME = "tfos-weights-"


def load_shared(sent: SentModel, bundle: ModelBundle) -> Any:
    """Return a Keras model, loaded, whose weights this executor's workers share; None for one that they do not.

    Whatever prevents it, as a full disk or a layer that creates variables from values, is a warning.
    """
    local, backend = local_directory(), keras_backend()
    if bundle.kind != "keras" or backend not in ("tensorflow", "jax") or not local:
        return None
    file = sent.file()
    size = file.stat().st_size if file else 0
    if file is None or size < SHARED_BYTES:
        return None
    try:
        return _load(bundle, _unpacked(file, Path(local, f"{_NAME}{sent.name}")), backend)
    except Exception as error:  # of any kind: from the code of a layer, too
        _log.warning(
            "this worker loads the model of %d MB into memory of its own, since it can't share the weights: %s: %s",
            size >> 20,
            type(error).__name__,
            error,
        )
        return None


def _unpacked(file: Path, directory: Path) -> Path:
    """Return a directory with a model in Keras's format, whose arrays are aligned; the first worker writes it.

    `file` contains the ``.keras`` file, and whatever Spark writes before and after it.
    """
    partial, source = directory.with_name(f"{_NAME}partial"), directory.with_name(f"{directory.name}.source")
    with directory.with_name(f"{_NAME}lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # which ends with this process
        if directory.exists():
            return directory
        for other in directory.parent.glob(f"{_NAME}*.source"):
            if not other.exists():  # it is a link to a file that Spark has removed, with the last plan of that model
                shutil.rmtree(other.with_suffix(""), ignore_errors=True)
                other.unlink()
        shutil.rmtree(partial, ignore_errors=True)  # of a worker that was killed
        try:
            with zipfile.ZipFile(file) as archive:
                if any(each.compress_type != zipfile.ZIP_STORED for each in archive.infolist()):
                    raise ValueError("its file is compressed, which Keras's are not")
                archive.extractall(partial)
            _align(partial / _WEIGHTS, partial / "aligned")
            source.unlink(missing_ok=True)
            source.symlink_to(file)
            partial.rename(directory)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return directory


def _align(weights: Path, aligned: Path) -> None:
    """Replace a file of weights by one with the same content, in which the arrays are aligned."""
    import h5py

    def refuse(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and (item.external or item.is_virtual):
            raise ValueError(f"its weights refer to another file ({name})")

    with (
        h5py.File(weights) as given,
        h5py.File(aligned, "w", alignment_threshold=_VIEWED_BYTES, alignment_interval=_ALIGNMENT) as written,
    ):
        given.visititems(refuse)
        written.attrs.update(given.attrs)
        for name in given:
            if not isinstance(given.get(name, getlink=True), h5py.HardLink):
                raise ValueError(f"its weights refer to another place ({name})")
            given.copy(name, written)
    aligned.replace(weights)


def _load(bundle: ModelBundle, directory: Path, backend: str) -> Any:
    pages = np.memmap(directory / _WEIGHTS, np.uint8, "c")
    with _views(pages, _TensorFlowView if backend == "tensorflow" else None), _assigned_variables() as assigned:
        model = load_file(bundle, directory, compiled=False)
    if assigned.waiting:
        raise RuntimeError(f"this Keras has made {len(assigned.waiting)} variables without their values")
    return model


class _TensorFlowView(np.ndarray[Any, Any]):
    """An array of mapped memory, which can't be written to, and of which TensorFlow makes a tensor without a copy."""

    mapped: Any = None  # the same array, writable, as the exchange of arrays wants it; none of a part of this one

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> Any:
        import tensorflow as tf

        wanted = None if dtype is None else tf.as_dtype(dtype)
        own = tf.as_dtype(self.dtype)
        if self.mapped is None or wanted not in (None, own):
            return tf.convert_to_tensor(self.view(np.ndarray), dtype=dtype, name=name)
        if own != tf.bfloat16:  # NumPy can't exchange
            return tf.experimental.dlpack.from_dlpack(self.mapped.__dlpack__())
        return tf.bitcast(tf.experimental.dlpack.from_dlpack(self.mapped.view(np.uint16).__dlpack__()), own)


@contextmanager
def _views(pages: np.memmap[Any, Any], kind: type[_TensorFlowView] | None) -> Iterator[None]:
    """Give Keras views of mapped pages in place of large arrays of weights, while it loads."""
    from keras.src.saving import saving_lib

    def find(group: Any, name: str) -> Any:
        dataset = find_dataset(group, name)
        return dataset if dataset.nbytes < _VIEWED_BYTES else _view(dataset, pages, kind)

    find_dataset: Callable[..., Any] = saving_lib.safe_get_h5_dataset
    saving_lib.safe_get_h5_dataset = find
    try:
        yield
    finally:
        saving_lib.safe_get_h5_dataset = find_dataset


def _view(dataset: Any, pages: np.memmap[Any, Any], kind: type[_TensorFlowView] | None) -> Any:
    """Return a view of the pages that hold an array of HDF5; that array where there is none, as of text."""
    import ml_dtypes

    dtype, start = dataset.dtype, dataset.id.get_offset()
    if dataset.attrs.get("dtype") == "bfloat16":  # Keras's mark; to HDF5 they are plain bytes
        dtype = np.dtype(ml_dtypes.bfloat16)
    elif dtype.kind not in "biufc" or not dtype.isnative:
        return dataset
    if start is None or start % _ALIGNMENT or dtype.itemsize != dataset.dtype.itemsize:
        return dataset
    array = np.asarray(pages[start : start + dataset.nbytes]).view(dtype).reshape(dataset.shape)
    view = array.view(kind) if kind else array.view()
    view.flags.writeable = False
    if isinstance(view, _TensorFlowView):
        view.mapped = array
    return view


def _assigned_variables() -> Any:
    """Return a scope in which variables get no initial values, at whose end they have those that were assigned."""
    import keras

    class Assigned(keras.StatelessScope):
        def __init__(self) -> None:
            super().__init__()
            self.waiting: set[int] = set()  # ids of variables without their values

        def add_update(self, update: Any) -> None:
            super().add_update(update)
            variable, value = update
            if variable._value is not None:
                raise ValueError(f"the variable {variable.path} is older than the model")
            self.waiting.add(id(variable))
            variable._initializer = partial(self._value_of, id(variable), value)

        def _value_of(self, variable: int, value: Any, *_: Any, **__: Any) -> Any:
            self.waiting.discard(variable)
            return value

    return Assigned()

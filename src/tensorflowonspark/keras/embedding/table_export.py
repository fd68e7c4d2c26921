"""Models with divided tables for serving, written block by block: no process has a whole table in memory.

The chief writes the model with a short stand-in for each table, whose value identifies it in the file, and then puts
the rows in its place as they arrive from the workers:

- a SavedModel: TensorFlow's checkpoint format holds a variable as any number of slices, one for each block;
- a ``.keras`` file: HDF5 writes a part of a dataset. A layer without combiner and hash becomes a plain ``Embedding``.

A process that loads such a file has the whole table in its memory.
"""

import json
import os
import shutil
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tensorflow as tf

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.embedding.layer import ShardedEmbedding
from tensorflowonspark.keras.sublayers import all_sublayers

_WEIGHTS = "model.weights.h5"
_CONFIG = "config.json"


def sharded_layers(model: Any) -> list[ShardedEmbedding]:
    """Return the layers of a model whose tables are divided, each once."""
    return [each for each in all_sublayers(model) if isinstance(each, ShardedEmbedding)]


def send_rows(layers: Sequence[ShardedEmbedding]) -> None:
    """Take part in `write_model` of the chief."""
    for layer in layers:
        layer._gathered_map()
    for layer in layers:
        for _ in layer._blocks():
            pass


def write_model(model: Any, layers: Sequence[ShardedEmbedding], path: str, write: Callable[[Any, str], None]) -> None:
    """Write a model for serving to a local path; the other workers call `send_rows` with the same layers.

    `layers` are all those of the model. The path is a file with the ending ``.keras``, or the directory of a
    SavedModel: other formats are a `SpecError`.
    """
    if path.endswith(".h5"):
        raise SpecError(f"{path}: a model with a ShardedEmbedding can be written as .keras, or as a SavedModel")
    with ExitStack() as stack:
        for number, layer in enumerate(layers):
            stack.enter_context(layer._serving(_mark(number)))
        write(model, path)
    (_fill_keras_file if path.endswith(".keras") else _fill_saved_model)(path, layers)


def _mark(number: int) -> float:
    """Return the value of a table's stand-in, which no other variable is likely to have."""
    return -987_654_336.0 - 64 * number  # exact in float32


def _find(layers: Sequence[ShardedEmbedding], shapes: Mapping[str, Any], read: Callable[[str], Any]) -> list[str]:
    """Return the name of the stand-in for the table of each layer."""
    short = {name: float(read(name)[0, 0]) for name, shape in shapes.items() if list(shape[:-1]) == [1] and shape[-1]}
    return [next(name for name, value in short.items() if value == _mark(number)) for number in range(len(layers))]


def _fill_saved_model(path: str, layers: Sequence[ShardedEmbedding]) -> None:
    prefix = f"{path}/variables/variables"
    reader = tf.train.load_checkpoint(prefix)
    shapes = {
        name: shape
        for name, shape in reader.get_variable_to_shape_map().items()
        if reader.get_variable_to_dtype_map()[name] == tf.float32
    }
    names = _find(layers, shapes, reader.get_tensor)
    others = sorted(set(reader.get_variable_to_dtype_map()) - set(names))
    with TemporaryDirectory(dir=path) as folder:
        prefixes: list[str] = []

        def save(names: list[str], slices: list[str], values: list[Any]) -> None:
            prefixes.append(f"{folder}/{len(prefixes):06d}/variables")
            Path(prefixes[-1]).parent.mkdir()
            tf.raw_ops.SaveV2(prefix=prefixes[-1], tensor_names=names, shape_and_slices=slices, tensors=values)

        with tf.device("/device:CPU:0"):
            if others:
                save(others, [""] * len(others), [tf.constant(reader.get_tensor(name)) for name in others])
            for name, layer in zip(names, layers, strict=True):
                for first, rows in layer._blocks():
                    save([name], [f"{layer._total} {layer.dim} {first},{len(rows)}:-"], [tf.constant(rows)])
            del reader
            shutil.rmtree(f"{path}/variables")
            Path(path, "variables").mkdir()
            tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=prefixes, destination_prefix=prefix, delete_old_dirs=True)


def _fill_keras_file(path: str, layers: Sequence[ShardedEmbedding]) -> None:
    import h5py

    with TemporaryDirectory(dir=os.path.dirname(path)) as folder:  # noqa: PTH120 - may be relative
        with zipfile.ZipFile(path) as file:
            file.extractall(folder)
            names = file.namelist()
        weights = Path(folder, _WEIGHTS)
        with h5py.File(weights, "r+") as file:
            shapes: dict[str, Any] = {}
            file.visititems(lambda name, item: shapes.update({name: item.shape} if hasattr(item, "shape") else {}))
            for name, layer in zip(_find(layers, shapes, lambda name: file[name]), layers, strict=True):
                del file[name]
                table = file.create_dataset(name, (layer._total, layer.dim), "float32")
                for first, rows in layer._blocks():
                    table[first : first + len(rows)] = rows
            if "optimizer" in file:  # its variables are those of the divided model
                del file["optimizer"]
        config = json.loads(Path(folder, _CONFIG).read_bytes())
        config.pop("compile_config", None)
        Path(folder, _CONFIG).write_text(json.dumps(config))
        with zipfile.ZipFile(path, "w") as file:
            for name in names:
                file.write(Path(folder, name), name)

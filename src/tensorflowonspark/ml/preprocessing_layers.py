"""Preprocessing layers of a model: those without a state, and the columns that each receives."""

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from tensorflowonspark.keras.preprocessing import family_of, is_adapted
from tensorflowonspark.keras.structure import at, input_paths, input_structure, inputs_of
from tensorflowonspark.keras.sublayers import direct_sublayers
from tensorflowonspark.ml.serialization import is_model, library_of


def adaptable_layers(model: Any) -> list[Any]:
    """Return the layers of a model, nested ones included, that can adapt."""
    return list(_adaptable(model, set()))


def _adaptable(layer: Any, seen: set[int]) -> Iterator[Any]:
    if id(layer) in seen:
        return
    seen.add(id(layer))
    if family_of(layer):
        yield layer  # not the lookup within a TextVectorization
        return
    for each in layer.layers if is_model(layer) else direct_sublayers(layer):
        yield from _adaptable(each, seen)


def unadapted_layers(model: Any) -> list[Any]:
    """Return the layers of a model that should adapt before it is trained."""
    return [layer for layer in adaptable_layers(model) if not is_adapted(layer)]


def input_names(model: Any) -> list[str]:
    """Return the names of a model's inputs, in order; none if they are unknown."""
    return list(input_paths(model)) if inputs_of(model) else []


def source_inputs(model: Any, layer: Any) -> list[str] | None:
    """Return the inputs of the model that a layer takes unchanged: one, or several that are concatenated.

    None if it takes anything else, or is called several times with different inputs.
    """
    _, nodes = _graph_of(model)
    structure = input_structure(model)
    names = {id(at(structure, path)): name for name, path in input_paths(model).items()}
    found = [_sources(_inputs_of(node), nodes, names) for node in nodes if _layer_of(node) is layer]
    return found[0] if found and all(each == found[0] for each in found) else None


def model_up_to(model: Any, layer: Any) -> Any:
    """Return a model from the model's inputs to a layer's; None unless the layer is called once, on one tensor."""
    graph, nodes = _graph_of(model)
    found = [_inputs_of(node) for node in nodes if _layer_of(node) is layer]
    if len(found) != 1 or len(found[0]) != 1:
        return None
    return import_module(library_of(model)).Model(input_structure(graph), found[0][0])


def _graph_of(model: Any) -> tuple[Any, list[Any]]:
    graph, library = model, import_module(library_of(model))
    if isinstance(model, library.Sequential) and getattr(model, "inputs", None):  # has no nodes itself in Keras 3
        graph = library.Model(model.inputs, model.outputs)
    by_depth = getattr(graph, "_nodes_by_depth", None) or {}
    return graph, [node for each in by_depth.values() for node in each]


def _sources(tensors: Sequence[Any], nodes: Sequence[Any], names: Mapping[int, str]) -> list[str] | None:
    sources: list[str] = []
    for tensor in tensors:
        if id(tensor) in names:
            sources.append(names[id(tensor)])
            continue
        producer = next((node for node in nodes if any(each is tensor for each in _outputs_of(node))), None)
        concatenates = producer is not None and type(_layer_of(producer)).__name__ == "Concatenate"
        nested = _sources(_inputs_of(producer), nodes, names) if concatenates else None
        if nested is None:
            return None
        sources += nested
    return sources


def _layer_of(node: Any) -> Any:
    return node.operation if hasattr(node, "operation") else node.layer  # Keras 3, tf_keras


def _inputs_of(node: Any) -> list[Any]:
    return list(node.input_tensors if hasattr(node, "input_tensors") else node.keras_inputs)


def _outputs_of(node: Any) -> list[Any]:
    outputs = node.output_tensors if hasattr(node, "output_tensors") else node.outputs
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]

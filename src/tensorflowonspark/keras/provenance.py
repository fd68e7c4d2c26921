"""Provenance of datasets: whether their elements come from a feed, which returns the rows of one worker only.

The options of a feed's dataset record that (`shards`), but are lost if the dataset is an argument of a function
(``interleave``, ``flat_map``), or if TensorFlow or Keras makes a dataset of a Python generator. So each dataset also
records its *sources*:

- a dataset has the sources of its inputs, and of the datasets that its functions make or capture;
- ``from_generator`` adds its generator. Running a generator shows whether it reads from a feed: a feed reports each
  read (`report_read`) to the generator that runs in the same thread;
- ``load`` adds those of the dataset that this process saved there.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.hooks import wrap

_SOURCES = "_tensorflowonspark_sources"
_running = threading.local()  # the readers that run in this thread, from the outermost


class SourceReader:
    """Code that may read from a feed."""

    def __init__(self) -> None:
        self.reads_feed = False
        self.divided = False  # TensorFlow gives each worker a part of what it yields

    @contextmanager
    def running(self) -> Iterator[None]:
        """Attribute reads from a feed in this thread to this code."""
        stack = _running.__dict__.setdefault("stack", [])
        stack.append(self)
        try:
            yield
        finally:
            stack.pop()


SHARE = SourceReader()  # a feed itself
SHARE.reads_feed = True


def report_read() -> None:
    """Report a read from a feed to the code that runs in this thread.

    If TensorFlow divides the elements of that code among the workers, which would drop rows that no other worker has,
    it is a `SpecError`.
    """
    for reader in getattr(_running, "stack", ()):
        reader.reads_feed = True
        if reader.divided:
            raise SpecError(
                "a generator given to tf.data reads this worker's rows of the feed, and TensorFlow divides its batches "
                "among all workers once more, so that most rows would be dropped: use ctx.dataset(...), or set "
                "options = tf.data.Options(); options.experimental_distribute.auto_shard_policy = "
                "tf.data.experimental.AutoShardPolicy.OFF; dataset = dataset.with_options(options)"
            )


class Generator(SourceReader):
    """A generator function of ``tf.data.Dataset.from_generator``, to which TensorFlow may pass arguments."""

    def __init__(self, function: Callable[..., Any], takes_arguments: bool) -> None:
        super().__init__()
        self.reads_feed = bool(getattr(function, "reads_feed", False))
        self._function = function
        self._begun: Iterator[Any] | None = None
        self._tested = takes_arguments or self.reads_feed  # no test is possible, or needed

    def __call__(self, *arguments: Any) -> Iterator[Any]:
        """Return a pass over its elements: the one that `test_read` began, or a new one."""
        begun, self._begun = self._begun, None
        return begun if begun is not None else self._pass(*arguments)

    def test_read(self) -> bool:
        """Return whether it reads from a feed; begin its first pass to test that.

        The element that this takes is the first of the next pass: none is lost, and none is made twice.
        """
        if not self._tested and not self.reads_feed:
            self._tested = True
            first: list[Any] = []
            rest = self._pass()
            error: Exception | None = None
            try:
                first.append(next(rest))
            except StopIteration:
                pass
            except Exception as raised:  # raised again by the pass
                error = raised
            self._begun = _resumed(first, error, rest)
        return self.reads_feed

    def _pass(self, *arguments: Any) -> Iterator[Any]:
        with self.running():
            elements = iter(self._function(*arguments))
        while True:
            with self.running():
                try:
                    element = next(elements)
                except StopIteration:
                    return
            yield _owned(element)


def _owned(element: Any) -> Any:
    """Return an element with copies of its arrays.

    TensorFlow takes over the memory of what a generator yields, and an operation may put its result there. That must
    not be a view of the program's own arrays.
    """
    if isinstance(element, np.ndarray):
        return element.copy()
    if isinstance(element, dict):
        return {name: _owned(value) for name, value in element.items()}
    return tuple(map(_owned, element)) if type(element) is tuple else element


def _resumed(first: list[Any], error: Exception | None, rest: Iterator[Any]) -> Iterator[Any]:
    while first:
        yield first.pop()
    if error is not None:
        raise error
    yield from rest


def sources(dataset: Any) -> frozenset[SourceReader]:
    """Return the sources of a dataset."""
    found: frozenset[SourceReader] = getattr(dataset, _SOURCES, frozenset())
    return found


def any_reads_feed(origins: Iterable[SourceReader]) -> bool:
    """Return whether any source reads from a feed; if that is not known of any, generators begin a pass to show it."""
    found = list(origins)
    return any(each.reads_feed for each in found) or any(
        each.test_read() for each in found if isinstance(each, Generator)
    )


def add_source(dataset: Any, *added: SourceReader) -> None:
    """Add sources to a dataset, to its tensor, and to the functions that make it."""
    import tensorflow as tf  # its import is complete by now

    tensor = tf.data.experimental.to_variant(dataset)
    holders = [dataset, tensor]
    graph = getattr(tensor, "graph", None) if not hasattr(tensor, "numpy") else None
    while graph is not None:  # those of functions, from the innermost
        holders.append(graph)
        graph = getattr(graph, "outer_graph", None)
    for each in holders:
        with suppress(AttributeError):
            object.__setattr__(each, _SOURCES, sources(each).union(added))


def track_datasets(tensorflow: ModuleType) -> None:
    """Have each ``tf.data.Dataset`` record its sources (called after the import of TensorFlow)."""

    def load(wrapped: Any, _: Any, /, path: Any, *args: Any, **kwargs: Any) -> Any:
        dataset = wrapped(path, *args, **kwargs)
        if Path(path).absolute() in saved:
            add_source(dataset, SHARE)
        return dataset

    def save(wrapped: Any, dataset: Any, /, path: Any, *args: Any, **kwargs: Any) -> Any:
        if any(each.reads_feed for each in sources(dataset)):
            saved.add(Path(path).absolute())
        return wrapped(path, *args, **kwargs)

    def snapshot(wrapped: Any, dataset: Any, /, *args: Any, **kwargs: Any) -> Any:
        if SHARE in sources(dataset):
            raise SpecError(
                "dataset.snapshot can't record a feed, whose rows TensorFlow gets from Python: the rows are kept "
                "already, and what is computed from them by dataset.cache(file) or dataset.save(directory)"
            )
        return wrapped(*args, **kwargs)

    saved: set[Path] = set()  # the directories of datasets that hold rows of a feed
    wrap(tensorflow, "data.Dataset.__init__", _collect_sources)
    wrap(tensorflow, "data.Dataset.__iter__", _report_iteration)
    wrap(tensorflow, "data.Dataset.from_generator", _watch_generator)
    wrap(tensorflow, "data.Dataset.save", save)
    wrap(tensorflow, "data.Dataset.load", load)
    wrap(tensorflow, "data.Dataset.snapshot", snapshot)


def _collect_sources(wrapped: Any, dataset: Any, /, *args: Any, **kwargs: Any) -> None:
    import tensorflow as tf

    wrapped(*args, **kwargs)
    with suppress(NotImplementedError, AttributeError):  # datasets that do not expose their inputs
        found = frozenset[SourceReader]().union(
            *map(sources, [tf.data.experimental.to_variant(dataset), *dataset._inputs()])
        )
        for function in dataset._functions():
            concrete = function.function
            found = found.union(*map(sources, [concrete.graph, *concrete.captured_inputs]))
        if found:
            add_source(dataset, *found)


def _watch_generator(wrapped: Any, _: Any, /, generator: Any, *rest: Any, **kwargs: Any) -> Any:
    if not callable(generator):
        return wrapped(generator, *rest, **kwargs)
    arguments = kwargs.get("args", (*rest, None, None, None)[2])
    watched = Generator(generator, takes_arguments=arguments is not None)
    # A generator that is known to read from a feed needs no test.
    dataset = wrapped(generator if watched.reads_feed else watched, *rest, **kwargs)
    add_source(dataset, SHARE if watched.reads_feed else watched)
    return dataset


def _report_iteration(wrapped: Any, dataset: Any, /) -> Any:
    if any(each.reads_feed for each in sources(dataset)):
        report_read()
    return wrapped()


def track_adapters(module: ModuleType) -> None:
    """Have Keras's adapters report what they prefetch from generators (called after the import of their module)."""

    def watched(wrapped: Any, adapter: Any, /, *args: Any, **kwargs: Any) -> Any:
        reader = adapter.__dict__.setdefault("_tensorflowonspark_reader", SourceReader())
        with reader.running():
            result = wrapped(*args, **kwargs)
        dataset = result if result is not None else getattr(adapter, "_dataset", None)  # of Keras 3, or of tf_keras
        if reader.reads_feed and dataset is not None:
            add_source(dataset, SHARE)
        return result

    for kind in ("GeneratorDataAdapter", "PyDatasetAdapter"):
        for function in ("__init__", "get_tf_dataset"):
            if function in getattr(vars(module).get(kind), "__dict__", {}):
                wrap(module, f"{kind}.{function}", watched)

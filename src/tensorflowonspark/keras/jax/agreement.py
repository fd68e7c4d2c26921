"""What the workers agree on while a model trains on JAX: where they stop, and that their models are the same.

A step is a computation of all processes, and one that begins it alone waits for ever. So what a callback does on one
worker alone has to become known where all meet:

- At the beginning and the end of an epoch, and at the end of the training, the workers meet by way of the driver. They
  stop if one of them has set ``stop_training``, and compare checksums of their models.
- Within an epoch they meet after each step, by a collective of one number, if a callback of one of them may act there.
  Other trainings pay nothing for it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.exchanging_callbacks import callbacks_in
from tensorflowonspark.keras.hooks import setting, wrap
from tensorflowonspark.keras.jax.value_placement import is_sharded, local_array
from tensorflowonspark.keras.workers import combine, compared

_GOES_ON, _STOPS = 0, 1  # what a worker does after a step; further numbers are calls of `_CALLS`
_CALLS = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch")  # that all workers must make
_BEFORE = ("on_train_batch_begin", "on_test_batch_begin", "on_batch_begin")
_AFTER = ("on_train_batch_end", "on_test_batch_end", "on_batch_end")
_QUIET = ("BackupAndRestore", "CSVLogger", "History", "ModelCheckpoint", "OrbaxCheckpoint", "ProgbarLogger",
          "SwapEMAWeights", "TensorBoard")  # Keras's callbacks that stop no training  # fmt: skip


class Agreement:
    """What the workers agree on in one call of ``fit`` or ``evaluate``; all of them must make it."""

    def __init__(self, model: Any, call: str, callbacks: Any) -> None:
        self.model = model
        self._call = f"model.{call}"
        own = [_acts(callbacks, hooks) for hooks in (_BEFORE, _AFTER)]
        self._meets_before, self._meets_after = combine(self._call, own, lambda all_of: np.any(all_of, 0).tolist())
        self._in_step = self._held = self._stops = False

    @contextmanager
    def step(self, number: int, *, after: bool) -> Iterator[None]:
        """Meet the other workers when this one's callbacks have run, before or after a step."""
        meets = self._meets_after if after else self._meets_before
        self._in_step = meets
        try:
            yield
        finally:
            self._in_step = False
        flag = "stop_evaluating" if self._call == "model.evaluate" else "stop_training"
        stops = bool(getattr(self.model, flag, False))
        if meets:
            self._stops = _STOPS in self._meet(_STOPS if stops else _GOES_ON, number)
            setattr(self.model, flag, self._stops)
        elif stops and after and not self._stops:  # not set by a callback of a step: the others do not know of it
            setattr(self.model, flag, False)
            self._held = True

    def announce(self, call: str) -> None:
        """Send the other workers that this one calls a method of a model; an error if they don't call it too."""
        if self._in_step:
            self._meet(_STOPS + 1 + _CALLS.index(call), None)

    def _meet(self, code: int, step: int | None) -> list[int]:
        codes = exchanged(code)
        calls = [f"model.{_CALLS[each - _STOPS - 1]}" if each > _STOPS else "" for each in codes]
        if len(set(calls)) > 1:
            worker = next(number for number, each in enumerate(calls) if each)
            other = next(number for number, each in enumerate(calls) if each != calls[worker])
            where = "" if step is None else f" beside step {step}"
            raise SpecError(
                f"{calls[worker]} on worker {worker} in a callback of {self._call}{where}, and worker {other} "
                f"{'calls ' + calls[other] if calls[other] else 'goes on'}: on JAX the workers are one program, in "
                f"which all take each step. Call {calls[worker]} on all workers in the same place"
            )
        return codes

    def epoch_began(self) -> None:
        """Agree on whether to stop, as a callback may demand before the first step."""
        self._stops = combine("model.fit (an epoch begins)", bool(self.model.stop_training), any)
        self.model.stop_training = self._stops  # after the first step

    def epoch_ended(self) -> None:
        """Agree on whether to stop; an error if the models have become different."""
        stops = bool(self.model.stop_training) or self._held
        self.model.stop_training = self._compared("model.fit (an epoch ends)", stops)

    def training_ended(self) -> None:
        """Compare the models once more, since callbacks may set weights at the end."""
        self._compared("model.fit (the training ends)", False)

    def _compared(self, call: str, stops: bool) -> bool:
        """Return whether any worker stops; an error if the models differ."""
        found, stops = combine(call, (checksums(state_of(self.model)), stops), _merged)
        if isinstance(found, tuple):
            worker, path = found
            raise SpecError(
                f"{call}: the models of worker 0 and worker {worker} have become different (in {path!r}): a callback "
                "on one worker has set it, or each worker another value. Set it on all workers to the same value, as "
                "a callback does that all have, and that decides by the logs, which are those of all workers"
            )
        return bool(stops)


def _merged(of_all: list[tuple[list[tuple[str, bool, Any]], bool]]) -> tuple[set[int] | tuple[int, str], bool]:
    return compared([variables for variables, _ in of_all]), any(stops for _, stops in of_all)


_current: ContextVar[Agreement | None] = ContextVar("agreement", default=None)


@contextmanager
def agreeing(model: Any, call: str, callbacks: Any) -> Iterator[None]:
    """Have the workers agree on what a call of ``fit`` or ``evaluate`` does, for the duration of a block."""
    announce(call)
    if hasattr(callbacks, "callbacks") and _current.get() is not None:  # the validation of ``fit``
        yield
        return
    with setting(_current, Agreement(model, call, callbacks)):
        yield


def announce(call: str) -> None:
    """Raise an error if this is a callback within an epoch, and another worker doesn't make this call of a model."""
    agreement = _current.get()
    if agreement is not None:
        agreement.announce(call)


def meet_others(keras: ModuleType) -> None:
    """Have the workers meet where Keras calls callbacks (called after its import)."""
    for after, names in ((False, _BEFORE[:2]), (True, _AFTER[:2])):
        for name in names:
            wrap(keras, f"callbacks.CallbackList.{name}", _in_step(after))
    for name, agree in (
        ("on_epoch_begin", Agreement.epoch_began),
        ("on_epoch_end", Agreement.epoch_ended),
        ("on_train_end", Agreement.training_ended),
    ):
        wrap(keras, f"callbacks.CallbackList.{name}", _at(agree))


def _in_step(after: bool) -> Callable[..., Any]:
    def method(wrapped: Any, callbacks: Any, /, batch: int, *args: Any, **kwargs: Any) -> None:
        agreement = _of(callbacks)
        if agreement is None:
            wrapped(batch, *args, **kwargs)
            return
        with agreement.step(batch, after=after):
            wrapped(batch, *args, **kwargs)

    return method


def _at(agree: Callable[[Agreement], None]) -> Callable[..., Any]:
    def method(wrapped: Any, callbacks: Any, /, *args: Any, **kwargs: Any) -> None:
        wrapped(*args, **kwargs)
        agreement = _of(callbacks)
        if agreement is not None:
            agree(agreement)

    return method


def _of(callbacks: Any) -> Agreement | None:
    """Return the agreement of the call that calls these callbacks; None if it is of another model."""
    agreement = _current.get()
    return agreement if agreement is not None and agreement.model is callbacks.model else None


def _acts(callbacks: Any, hooks: Sequence[str]) -> bool:
    """Return whether a callback of the program's may act within an epoch."""
    from keras import callbacks as module

    quiet = {getattr(module, name) for name in _QUIET if hasattr(module, name)}
    others = [
        each for each in callbacks_in(callbacks) if type(each) not in quiet and not getattr(each, "stops_nothing", 0)
    ]
    return any(
        getattr(getattr(each, name, None), "__func__", None) is not getattr(module.Callback, name)
        for each in others
        for name in hooks
    )


def exchanged(value: int) -> list[int]:
    """Return a number of each process, in their order, by a collective of all."""
    import jax

    together, each_its_own, gather = _exchange()
    own = np.full(jax.local_device_count(), value, np.int32)
    found = gather(jax.make_array_from_process_local_data(each_its_own, own, (len(together),)))
    values = np.asarray(found.addressable_data(0))
    return [int(values[together.index(process)]) for process in range(jax.process_count())]


@cache
def _exchange() -> tuple[list[int], Any, Any]:
    """Return the process of each device, the sharding of one number each, and the function that gathers them."""
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), ("device",))
    gather = jax.jit(lambda values: values, out_shardings=NamedSharding(mesh, PartitionSpec()))
    return [each.process_index for each in jax.devices()], NamedSharding(mesh, PartitionSpec("device")), gather


def state_of(model: Any) -> list[Any]:
    """Return the variables of a model and its optimizer that must be equal on all workers: causes before effects."""
    metrics = {id(each) for each in model.metrics_variables}
    optimizer = getattr(model, "optimizer", None)
    of_optimizer = list(optimizer.variables) if optimizer is not None else []
    own = [each for each in model.variables if id(each) not in metrics]
    return [*(each for each in of_optimizer if not each.shape), *own, *(each for each in of_optimizer if each.shape)]


def checksums(variables: Sequence[Any]) -> list[tuple[str, bool, Any]]:
    """Return path, shape and checksum of each variable, as `keras.workers.compared` takes them.

    The sums are computed where the values are. A variable that is divided among the workers has none.
    """
    whole = [each for each in variables if not is_sharded(each.value)]
    sums = np.asarray(_sums()([local_array(each.value) for each in whole])) if whole else ()
    of = {id(variable): int(each) for variable, each in zip(whole, sums, strict=True)}
    return [(each.path, False, (tuple(each.shape), of.get(id(each), 0))) for each in variables]


@cache
def _sums() -> Any:
    import jax

    return jax.jit(lambda values: jax.numpy.stack([_checksum(each) for each in values]))


def _checksum(value: Any) -> Any:
    """Return a sum of the bits of a value, in which each place counts differently."""
    import jax
    import jax.numpy as jnp

    value = value.astype(jnp.uint8) if value.dtype == jnp.bool_ else value
    width = min(value.dtype.itemsize, 4)  # of numbers of 8 bytes, two halves each
    bits = jax.lax.bitcast_convert_type(value, f"uint{8 * width}").reshape(-1).astype(jnp.uint32)
    return jnp.sum(bits * (2 * jnp.arange(bits.size, dtype=jnp.uint32) + 1), dtype=jnp.uint32)

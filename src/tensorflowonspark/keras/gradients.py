"""Gradients of a step: where a tape returns those for variables, they are the gradients of all workers' rows.

So everything that a program does with gradients before it applies them is right: it clips them, logs their norm,
projects them, takes a step with them that it differentiates once more. Gradients for anything else, as for the inputs
of a penalty, stay those of the worker's own rows.

The gradient of a loss counts as the loss itself: by the worker's share of the rows if it is a mean over them, whole if
it is a sum. What is computed of sums and means is computed once more of those of all workers (`all_rows`), and has the
gradient of that. Any other loss is refused.
"""

from collections.abc import Sequence
from contextvars import ContextVar
from types import ModuleType
from typing import Any

import tensorflow as tf

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.all_rows import computed_from, is_own, of_all_rows
from tensorflowonspark.keras.hooks import setting, wrap
from tensorflowonspark.keras.row_kinds import BY_ROW, FREE, Found, Of, mark, mark_rows
from tensorflowonspark.keras.row_operations import found_in
from tensorflowonspark.keras.tensorflow_collectives import all_sum
from tensorflowonspark.keras.worker_step import WorkerStep, current_step

_whole = ContextVar("gradients are those of each row by itself", default=False)


def sum_gradients(tensorflow: ModuleType) -> None:
    """Have tapes return the gradients of all workers' rows in a step (called after the import of TensorFlow)."""

    def gradient(
        wrapped: Any, _: Any, /, target: Any, sources: Any, output_gradients: Any = None, *rest: Any, **options: Any
    ) -> Any:
        step = current_step()
        if step is None or _whole.get():
            return wrapped(target, sources, output_gradients, *rest, **options)
        variables = [hasattr(each, "assign") for each in tf.nest.flatten(sources)]
        targets, factors = _weighted(step, tf.nest.flatten(target), output_gradients, any(variables))
        own = wrapped(targets, sources, factors, *rest, **options)
        for each, source, is_variable in zip(*map(tf.nest.flatten, (own, sources)), variables, strict=True):
            if not is_variable and isinstance(each, tf.Tensor) and found_in(source).of is Of.ROWS:
                mark_rows(each)  # as of what layers make of rows
        return own if step.is_compiled else summed(step, own, variables)

    def jacobian(wrapped: Any, _: Any, /, *args: Any, **kwargs: Any) -> Any:
        with setting(_whole, True):  # of each row by itself
            return wrapped(*args, **kwargs)

    for name in ("jacobian", "batch_jacobian"):
        wrap(tensorflow, f"GradientTape.{name}", jacobian)
    wrap(tensorflow, "GradientTape.gradient", gradient)


def summed(step: WorkerStep, gradients: Any, chosen: Sequence[bool] | None = None) -> Any:
    """Return the sums of gradients over all workers, or of those chosen, in the same structure."""
    flat = tf.nest.flatten(gradients)
    places = [place for place, each in enumerate(flat) if each is not None and (chosen is None or chosen[place])]
    if places:
        for place, total_of_all in zip(places, all_sum(step.strategy, [flat[place] for place in places]), strict=True):
            flat[place] = mark_free(total_of_all)
    return tf.nest.pack_sequence_as(gradients, flat)


def applied(step: WorkerStep, gradients: Sequence[Any]) -> list[Any]:
    """Return the gradients that an optimizer applies in a step, which are equal on all workers.

    Those that a tape has returned are, and what a program makes of them. A mean or sum over rows that was computed in
    another way, as of gradients of each row, is one of this worker, and is added up. If it is not known what a gradient
    is, it is a `SpecError`.
    """
    return [each if each is None else _applied(step, each) for each in gradients]


def _applied(step: WorkerStep, gradient: Any) -> Any:
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    if not tf.is_symbolic_tensor(values) or found_in(values).of is Of.FREE:
        return gradient
    found = found_in(values)
    if found.of not in (Of.SUM, Of.MEAN, Of.TOTAL):
        raise SpecError(
            refusal(f"{type(step.model).__name__}.train_step: a gradient that its optimizer applies", found)
        )
    (of_all,) = of_all_rows(step, [values])
    return mark_free(of_all)


def mark_free(value: Any) -> Any:
    """Mark what is equal on all workers, and return it."""
    for each in tf.nest.flatten(value, expand_composites=True):
        if tf.is_symbolic_tensor(each):
            mark(each, FREE)
    return value


def _weighted(step: WorkerStep, losses: Sequence[Any], given: Any, strict: bool) -> tuple[list[Any], list[Any]]:
    """Return tensors to differentiate in place of losses, and by what the gradient of each is multiplied."""
    factors = tf.nest.flatten(given) if given is not None else list(map(tf.ones_like, losses))
    found = [found_in(each) for each in losses]
    unknown = next((each for each in found if each.of not in _WEIGHED), None)
    if unknown is not None and strict:
        raise SpecError(refusal(f"{type(step.model).__name__}.train_step: its loss", unknown))
    if unknown is not None:  # a gradient for inputs, of what may have no meaning for all rows
        return list(losses), factors
    again = [place for place, each in enumerate(found) if is_own(each)]
    factors = [each * tf.cast(_weight(step, of), each.dtype) for each, of in zip(factors, found, strict=True)]
    if not again:
        return list(losses), factors
    used, of_used = _gradient_of_all(step, [losses[place] for place in again], [factors[place] for place in again])
    plain = [place for place in range(len(losses)) if place not in again]
    return [losses[place] for place in plain] + used, [factors[place] for place in plain] + of_used


def _gradient_of_all(step: WorkerStep, losses: Sequence[Any], factors: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return what losses are computed from that this worker's first run has computed, and their gradients for it."""
    used = computed_from(losses)
    with tf.GradientTape() as tape, setting(_whole, True):
        tape.watch(used)
        found = tape.gradient(of_all_rows(step, losses), used, factors)
    pairs = [(each, gradient) for each, gradient in zip(used, found, strict=True) if gradient is not None]
    return [each for each, _ in pairs], [gradient for _, gradient in pairs]


_WEIGHED = {Of.FREE, Of.MEAN, Of.SUM, Of.TOTAL, *BY_ROW}


def _weight(step: WorkerStep, found: Found) -> tf.Tensor:
    """Return by what this worker's value is multiplied, so that the sum over the workers is the value of all rows."""
    return step.any if found.of is Of.SUM or found.of in BY_ROW else step.share


def refusal(what: str, found: Found) -> str:
    """Return why a value is refused of which all workers' own do not give that of all rows."""
    place = f" ({found.why})" if found.why else ""
    return (
        f"{what} is not seen to be a function of means and sums over the rows of a batch{place}: of several workers "
        "each computes it of its own rows, and the value of all rows does not follow from theirs. Compute it of means "
        "and sums (keras.ops.mean, keras.ops.sum) of values of rows, or by a class of keras.losses, in the step "
        "itself, without run_eagerly=True and outside of a tf.function of its own"
    )


def contribution(step: WorkerStep, value: Any, what: str = "", *, strict: bool = False) -> Any:
    """Return what this worker adds to a sum over the workers that is the value of all rows together, a float.

    A value that is no function of the batch as a whole is a `SpecError` with its name, `what`; if `strict`, also one
    that may be none. Without a name none is refused: those of the workers are averaged, each weighted with its rows.
    """
    found = found_in(value)
    if what and found.of not in _WEIGHED and (strict or found.of is Of.WHOLE):
        raise SpecError(refusal(what, found))
    if is_own(found):
        (value,) = of_all_rows(step, [value])
    return value * tf.cast(_weight(step, found), value.dtype)

"""Gradients of a step: where a tape returns those for variables, they are the gradients of all workers' rows.

So everything that a program does with gradients before it applies them is right: it clips them, logs their norm,
projects them, takes a step with them that it differentiates once more. Gradients for anything else, as for the inputs
of a penalty, stay those of the worker's own rows.

The gradient of a loss counts as the loss itself: by the worker's share of the rows if it is a mean over them, whole if
it is a sum, by what it is divided by if it is a quotient (`loss_terms`). Any other loss is refused.
"""

from collections.abc import Container, Sequence
from contextvars import ContextVar
from dataclasses import replace
from types import ModuleType
from typing import Any

import tensorflow as tf

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.collectives import all_sum
from tensorflowonspark.keras.hooks import setting, wrap
from tensorflowonspark.keras.loss_terms import Term, terms, total
from tensorflowonspark.keras.row_kinds import FREE, Found, Of, mark, mark_rows
from tensorflowonspark.keras.row_operations import found_in, is_trained
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
    another way, as of gradients of each row, is one of this worker, and is added up.

    Raises
    ------
    SpecError
        If it is not known what a gradient is.
    """
    return [each if each is None else _applied(step, each) for each in gradients]


def _applied(step: WorkerStep, gradient: Any) -> Any:
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    if not tf.is_symbolic_tensor(values) or found_in(values).of is Of.FREE:
        return gradient
    found = terms(values, tf.ones_like(values))
    _refuse_unknown(found, f"{type(step.model).__name__}.train_step: a gradient that its optimizer applies", _WEIGHED)
    (total_of_all,) = all_sum(step.strategy, [_sum_of(step, found, values.dtype)])
    return mark_free(total_of_all)


def mark_free(value: Any) -> Any:
    """Mark what is equal on all workers, and return it."""
    for each in tf.nest.flatten(value, expand_composites=True):
        if tf.is_symbolic_tensor(each):
            mark(each, FREE)
    return value


def _weighted(step: WorkerStep, losses: Sequence[Any], given: Any, strict: bool) -> tuple[list[Any], list[Any]]:
    """Return tensors to differentiate in place of losses, and by what the gradient of each is multiplied."""
    factors = tf.nest.flatten(given) if given is not None else list(map(tf.ones_like, losses))
    found = [term for loss, factor in zip(losses, factors, strict=True) for term in terms(loss, factor)]
    if strict:
        _refuse_unknown(found, f"{type(step.model).__name__}.train_step: its loss", _WEIGHED, has_gradient=True)
    kinds = {term.found.of for term in found}
    if not kinds <= _WEIGHED:  # a gradient for inputs, of what may have no meaning for all rows
        return list(losses), factors
    if kinds <= {Of.MEAN, Of.FREE}:  # without a look into the sum
        return list(losses), [each * tf.cast(step.share, each.dtype) for each in factors]
    return [term.tensor for term in found], [
        term.factor * tf.cast(weight(step, term.found), term.factor.dtype) for term in found
    ]


def _refuse_unknown(found: Sequence[Term], what: str, accepted: Container[Of], *, has_gradient: bool = False) -> None:
    """Raise `SpecError` if a value is a function of the batch as a whole, or it is not known what it is.

    With a gradient a quotient is one if its divisor has a gradient too.
    """
    for term in found:
        if term.found.of not in accepted:
            raise SpecError(refusal(what, term.found))
        if has_gradient and term.found.divisor is not None and is_trained(term.found.divisor):
            raise SpecError(refusal(what, replace(term.found, why="divided by what the model computes")))


def _sum_of(step: WorkerStep, found: Sequence[Term], dtype: Any) -> Any:
    return tf.add_n([term.tensor * term.factor * tf.cast(weight(step, term.found), dtype) for term in found])


_WEIGHED = {Of.FREE, Of.MEAN, Of.SUM, Of.ROWS, Of.PICKED, Of.RATIO}


def refusal(what: str, found: Found) -> str:
    """Return why a value is refused of which all workers' own do not give that of all rows."""
    place = f" ({found.why})" if found.why else ""
    return (
        f"{what} is not seen to be a mean or a sum over the rows of a batch, or a quotient of two{place}: of several "
        "workers each computes it of its own rows, and the value of all rows does not follow from theirs. Compute it "
        "as a mean (keras.ops.mean) of values of rows, by a class of keras.losses, or as a sum that is divided by "
        "another, in the step itself, without run_eagerly=True and outside of a tf.function of its own"
    )


def weight(step: WorkerStep, found: Found) -> tf.Tensor:
    """Return by what this worker's value is multiplied, so that the sum over the workers is the value of all rows."""
    of = found.base if found.of is Of.RATIO else found.of
    of_rows = step.share if of in (Of.MEAN, Of.FREE) else step.any
    if found.divisor is None:
        return of_rows
    divisor = tf.cast(found.divisor, tf.float32)
    of_all = tf.cast(total(found.divisor, lambda each: _of_all(step, each)), tf.float32)
    return of_rows * tf.math.divide_no_nan(divisor, of_all)


def _of_all(step: WorkerStep, value: tf.Tensor) -> tf.Tensor:
    """Return the sum or mean of all rows that this worker's belongs to."""
    wide = value if value.dtype.is_floating else tf.cast(value, tf.float32)
    of_rows = step.share if found_in(value).of is Of.MEAN else step.any
    return tf.cast(step.of_all(wide * tf.cast(of_rows, wide.dtype)), value.dtype)


def contribution(
    step: WorkerStep, value: Any, what: str = "", *, strict: bool = False, has_gradient: bool = False
) -> Any:
    """Return what this worker adds to a sum over the workers that is the value of all rows together.

    Parameters
    ----------
    step : WorkerStep
        The step.
    value : tf.Tensor
        A float of this worker.
    what : str, optional
        What to call the value in the error. Without it no value is refused: those of the workers are averaged, each
        weighted with its rows.
    strict : bool
        Whether to refuse also what is not known to be a function of the batch as a whole, but may be one.
    has_gradient : bool
        Whether the value is a loss.

    Raises
    ------
    SpecError
        If it is one.
    """
    found = terms(value, tf.ones_like(value)) if isinstance(value, tf.Tensor) else []
    known = bool(found) and all(term.found.of in _WEIGHED for term in found)
    if what:
        _refuse_unknown(found, what, _WEIGHED if strict else {*Of} - {Of.WHOLE}, has_gradient=has_gradient)
    if not known or {term.found.of for term in found} <= {Of.MEAN, Of.FREE}:
        return value * tf.cast(step.share, value.dtype)
    return _sum_of(step, found, value.dtype)

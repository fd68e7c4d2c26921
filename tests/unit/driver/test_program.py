"""The user's function: which parameters it may have, and what the nodes call."""

import functools
import pickle

import pytest

import tensorflowonspark as tfos
from tensorflowonspark.driver.program import serialize_program


class Program:
    def method(self, ctx):
        return "method", ctx

    def __call__(self, args, ctx):
        return "call", args, ctx


@pytest.mark.parametrize(
    ("function", "args", "result"),
    [
        (lambda args, ctx: (args, ctx), 7, (7, "ctx")),
        (lambda args, ctx=None: (args, ctx), 7, (7, "ctx")),
        (lambda *both: both, 7, (7, "ctx")),
        (lambda args, ctx, more=1: (args, ctx, more), 7, (7, "ctx", 1)),
        (lambda args, ctx: (args, ctx), None, (None, "ctx")),
        (lambda ctx: ctx, None, "ctx"),
        (lambda ctx, *, more=1: (ctx, more), None, ("ctx", 1)),
        (lambda: "nothing", None, "nothing"),
        (functools.partial(lambda more, ctx: (more, ctx), 3), None, (3, "ctx")),
        (Program().method, None, ("method", "ctx")),
        (Program(), 7, ("call", 7, "ctx")),
        (max, 1, None),  # a builtin, whose parameters are not known
    ],
)
def test_nodes_call_a_function_of_two_parameters(function, args, result):
    shipped, argument = pickle.loads(serialize_program(function, args))
    assert argument == args
    if result is not None:
        assert shipped(argument, "ctx") == result


@pytest.mark.parametrize(
    ("function", "args", "message"),
    [
        (lambda a, b, c: None, None, r"takes a, b, c: expected a function of \(args, ctx\), of \(ctx\) or of no"),
        (lambda ctx, *, key: None, None, r"takes ctx, key: expected"),
        (lambda ctx: None, 5, r"args=5: the function .* does not take it"),
        (lambda: None, 5, r"args=5: the function .* does not take it"),
        (5, None, "function=5: expected a function of"),
        ("train", None, "there is no script train"),
    ],
)
def test_other_functions_are_refused_before_anything_starts(function, args, message):
    with pytest.raises(tfos.SpecError, match=message):
        tfos.Cluster(object(), function, args)

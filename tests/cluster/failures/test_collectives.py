"""Workers that do not take part in a collective."""

import pytest

import tensorflowonspark as tfos
from tensorflowonspark.node import collectives


def combining(ctx):
    return collectives.NodeCollectives(ctx._setup, ctx._link).combine


@pytest.mark.masters("local")
@pytest.mark.parametrize(
    ("alone", "message"),
    [
        pytest.param(
            lambda ctx: None,
            "the program of worker:1 returned without A.adapt, for which worker:0 waits",
            marks=pytest.mark.smoke,
        ),
        (lambda ctx: combining(ctx)("B.adapt", b"", b"".join), "called ..adapt, and another worker's ..adapt in its"),
    ],
)
def test_one_that_does_not_come_fails_the_cluster(spark, alone, message):
    def program(args, ctx):
        ctx.feed()
        return alone(ctx) if ctx.index == 1 else combining(ctx)("A.adapt", b"x", b"".join)

    with pytest.raises(tfos.NodeError, match=message):
        tfos.run(spark, program, data=spark.range(10), num_workers=2)

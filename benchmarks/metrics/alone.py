"""Contender: the work that measuring adds to a step, alone in one process: operations in the graph, and hooks."""

import time

from benchmarks.common.rounds import serve_rounds

_STEPS = 2000


def main():
    """Serve rounds: the seconds that a step takes longer by each."""
    import tensorflow as tf

    from tensorflowonspark.keras.waiting import _Collectives
    from tensorflowonspark.messages import Progress, RowSource
    from tensorflowonspark.node.meter import TrainingMeter

    collectives = _Collectives()
    value = tf.zeros(1000)

    def step(measured):
        @tf.function
        def run(inputs):
            if measured:  # the gradients, and two metrics
                for _ in range(3):
                    inputs = collectives.measured([inputs], lambda inputs=inputs: inputs + 1.0)
                return inputs
            return inputs + 3.0

        return run

    steps = {True: step(True), False: step(False)}

    def seconds(run):
        run(value)
        began = time.perf_counter()
        for _ in range(_STEPS):
            run(value)
        return (time.perf_counter() - began) / _STEPS

    meter = TrainingMeter(lambda _: None, alone=False)

    def hooks():
        logs = {"loss": value}
        meter.epoch_began(0, _STEPS)
        meter.pass_began(time.monotonic())
        began = time.perf_counter()
        for number in range(_STEPS):  # as if each batch left the feed by itself
            meter.rows_requested(time.monotonic(), ahead=True)
            meter.rows_taken(Progress(0, number, _STEPS, number))
            meter.rows_read(time.monotonic(), 1, 1000, ahead=True, seconds=0.0, source=RowSource.CACHE)
            meter.step_ended(number, logs)
        return (time.perf_counter() - began) / _STEPS

    serve_rounds(lambda _: {"graph": seconds(steps[True]) - seconds(steps[False]), "hooks": hooks()})


if __name__ == "__main__":
    main()

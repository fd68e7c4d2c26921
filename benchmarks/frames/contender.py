"""Contender: the verbs of ``tensorflowonspark.frames`` on ``local[2]``, with functions of each kind."""

import sys
import time

import cloudpickle

from benchmarks.common.rounds import serve_rounds
from benchmarks.common.spark import two_slots
from benchmarks.frames import functions

_SIZE = 16  # numbers of a row


def main():
    """Serve rounds."""
    from tensorflowonspark import frames

    cloudpickle.register_pickle_by_value(functions)  # Spark's Python workers can't import it
    with two_slots() as spark:
        made = {}

        def frame_of(rows):
            if rows not in made:
                numbers = ", ".join(f"double((id + {place}) % 97) / 97" for place in range(_SIZE))
                frame = spark.range(0, rows, 1, 4).selectExpr(f"array({numbers}) as x").cache()
                frame.count()
                made[rows] = frames.append_shape(frame, "x", [_SIZE])
            return made[rows]

        def run_round(request):
            """Return the seconds of one verb: of the call, and with Spark's job after it."""
            frame, function = frame_of(request["rows"]), getattr(functions, request["function"])()
            begun = time.perf_counter()
            result = getattr(frames, request["verb"])(function, frame)
            called = time.perf_counter() - begun
            if request["verb"].startswith("map"):
                result.write.format("noop").mode("overwrite").save()
            return {"call": called, "seconds": time.perf_counter() - begun}

        serve_rounds(run_round)


if __name__ == "__main__":
    sys.exit(main())

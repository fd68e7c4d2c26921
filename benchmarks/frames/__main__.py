"""Functions of TensorFlow in the verbs of ``tensorflowonspark.frames``: as graphs that it exports, and without.

With a `tf.function`, `frames` traces it for the columns, makes a graph of blocks of it and sends that to the executors.
A plain function that calls the same `tf.function` needs none of this, and neither does numpy.
"""

from statistics import median

from benchmarks.common.command import command, run
from benchmarks.common.report import circumstances, median_and_range, table
from benchmarks.common.rounds import Contender, take_turns

_MANY, _SOME, _FEW = 1_000_000, 200_000, 10_000  # rows; few where a function is called for each
_AS_GRAPH, _PLAIN, _NUMPY = "a `tf.function`, exported", "a plain function that calls it", "numpy"
_BY_HAND = "a plain function of blocks that vectorizes it"
_CONTENDERS = {
    ("map_blocks", _AS_GRAPH): ("map_blocks", "block_graph", _MANY),
    ("map_blocks", _PLAIN): ("map_blocks", "block_plain", _MANY),
    ("map_blocks", _NUMPY): ("map_blocks", "block_numpy", _MANY),
    ("map_rows", _AS_GRAPH): ("map_rows", "row_graph", _MANY),
    ("map_rows", _PLAIN): ("map_rows", "row_plain", _FEW),
    ("map_rows", _BY_HAND): ("map_blocks", "row_by_hand", _MANY),
    ("map_rows", _NUMPY): ("map_rows", "row_numpy", _SOME),
    ("reduce_blocks", _AS_GRAPH): ("reduce_blocks", "maximum_graph", _MANY),
    ("reduce_blocks", _PLAIN): ("reduce_blocks", "maximum_plain", _MANY),
    ("reduce_blocks", _NUMPY): ("reduce_blocks", "maximum_numpy", _MANY),
    ("reduce_rows", _AS_GRAPH): ("reduce_rows", "pair_graph", _MANY),
    ("reduce_rows", _PLAIN): ("reduce_rows", "pair_plain", _FEW),
    ("reduce_rows", _NUMPY): ("reduce_rows", "pair_numpy", _SOME),
}


def measure(options, log):
    """Run the rounds."""
    with Contender(["-m", "benchmarks.frames.contender"], log) as ours:
        turns = {
            f"{verb}: {kind}": ours.turn(verb=called, function=function, rows=rows)
            for (verb, kind), (called, function, rows) in _CONTENDERS.items()
        }
        found = take_turns(turns, options.rounds, "frames", shown=lambda found: f"{found['seconds']:.2f} s")
    yield {"about": circumstances(options), "rounds": found}


def report(results):
    """Return the section of the page."""
    rows = []
    for (verb, kind), (_, _, count) in _CONTENDERS.items():
        found = results["rounds"][f"{verb}: {kind}"]
        seconds = [each["seconds"] for each in found]
        # A reduction returns when its job has ended.
        call = median_and_range([each["call"] for each in found]) if verb.startswith("map") else ""
        rows.append(
            [f"`{verb}`", kind, f"{count:,}", f"{count / median(seconds):,.0f}", median_and_range(seconds), call]
        )
    head = ["verb", "function", "rows", "rows per second", "seconds", "of them until the verb returns"]
    return {"figures": f"{results['about']}\n\n{table(head, rows)}"}


if __name__ == "__main__":
    run(command("frames", __doc__, rounds=3), measure, report)

"""From the death of a node to the driver's error, and to the next step of the training that is started again.

Two workers of a `MultiWorkerMirroredStrategy` train with Keras on rows that ``cluster.train`` feeds, on ``local[2]``;
one is killed in the midst of it. Beside it stands a cluster that is started afresh in the same application, up to its
first step. All of it with warm nodes, and without, in turns.
"""

import argparse
import inspect
import json
import sys
from pathlib import Path

import tensorflowonspark as tfos
from recovery_report import PAGE, draw, report
from rounds import Contender, circumstances, environment, put_into, results_of

_HERE = Path(__file__).parent
_HAS_WARM = "warm_nodes" in inspect.signature(tfos.Cluster).parameters


def measure(options, results, log):
    """Run the rounds."""
    modes = {"warm": True, "cold": False} if _HAS_WARM else {"cold": None}
    turns = [(mode, what) for what in ("notice", "fresh", "recovery") for mode in modes]
    found = {mode: {what: [] for _, what in turns} for mode in modes}
    contender = Contender([sys.executable, str(_HERE / "recovery_ours.py")], environment(sys.executable), log)
    for number in range(options.rounds + 1):
        for mode, what in turns:
            answer = contender.round(json.dumps({"do": what, "warm": modes[mode]}))
            print(f"round {number}: {mode} {what}: {_shown(answer)}", file=sys.stderr, flush=True)
            if number:  # the first warms up
                found[mode][what].append(answer)
    contender.close()
    results |= {"about": circumstances(options.rounds), "modes": found}
    options.results.write_text(json.dumps(results, indent=1))


def _shown(answer):
    return ", ".join(f"{name} {seconds:.2f}" for name, seconds in answer.items())


def main():
    """Run the rounds, print the tables and put them into the page, draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results", type=Path, default=_HERE.parent / "build/benchmark-recovery.json", help="as JSON")
    parser.add_argument("--page", type=Path, default=PAGE, help="its picture lies beside it")
    parser.add_argument("--report-only", action="store_true", help="of the results that are there")
    options = parser.parse_args()
    results = results_of(options, measure)
    told = report(results)
    print(told)
    put_into(options.page, told)
    draw(results, options.page.with_suffix(".png"))


if __name__ == "__main__":
    main()

"""The control plane at scale: a driver whose nodes, up to a thousand, are played by other processes of this machine.

The driver's `Cluster`, and all below it but Spark, is the real one, in a process of its own: its memory, threads and
processor time are measured without the nodes'. Each node has a connection of its own and says what a real one says.
"""

import argparse
import json
import os
import sys
from pathlib import Path

from rounds import Contender, environment, put_into, results_of, versions
from scale_report import PAGE, draw, report

_HERE = Path(__file__).parent


def measure(options, results, log):
    """Run the rounds; each has a driver of its own, so that none finds memory that another has left it."""
    found = {str(count): [] for count in options.nodes}
    for number in range(options.rounds):
        for count, rounds in found.items():
            driver = Contender([sys.executable, str(_HERE / "scale_driver.py")], environment(sys.executable), log)
            rounds.append(driver.round(count))
            driver.close()
            print(f"round {number + 1}: {count} nodes: {_shown(rounds[-1])}", file=sys.stderr, flush=True)
    packages = versions("tensorflowonspark", "pyarrow")
    about = f"{packages}; {os.cpu_count()} cores; median of {options.rounds}, and the range"
    results |= {"about": about, "nodes": found}
    options.results.write_text(json.dumps(results, indent=1))


def _shown(found):
    up, down, death = found["up"], found["down"], found["death"]
    return f"up {up['seconds']:.2f} s, a death noticed {death['noticed']:.3f} s, down {down['seconds']:.2f} s"


def main():
    """Run the rounds, print the tables and put them into the page, draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 10, 30, 100, 300, 1000])
    parser.add_argument("--results", type=Path, default=_HERE.parent / "build/benchmark-scale.json", help="as JSON")
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

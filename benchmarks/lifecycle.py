"""Up and down of a cluster of two nodes that do nothing but import TensorFlow.

Side by side in one run, each on a standalone Spark cluster of two one-core workers: ours, detached and held; a bare
Spark job whose two tasks each start a fresh Python that imports TensorFlow, which no node can do without; and
TensorFlowOnSpark 2.2.5 from PyPI, in a virtual environment of its own, on Spark 3.5 and TensorFlow 2.15.

Then the second cluster of an application on `local[2]`, with warm nodes and without: until its programs have imported
TensorFlow and made a Keras model.
"""

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

from rounds import Contender, median_and_range, versions

_HERE = Path(__file__).parent
_OLD = ["tensorflowonspark==2.2.5", "pyspark==3.5.9", "tensorflow==2.15.1", "setuptools<80", "six", "numpy<2"]


def old_python(python, directory):
    """Return a Python that has TensorFlowOnSpark 2.2.5; make its virtual environment if there is none."""
    if not (directory / "bin/python").exists():
        subprocess.run([python, "-m", "venv", str(directory)], check=True)
        subprocess.run([str(directory / "bin/pip"), "install", "--quiet", *_OLD], check=True)
    return str(directory / "bin/python")


def take_turns(roads, rounds):
    """Run rounds of all roads in turn; return the seconds of each."""
    seconds = {name: [] for name in roads}
    for number in range(rounds + 1):
        for name, contender in roads.items():
            taken = contender.round(name)
            if number:  # the first warms up
                seconds[name].append(taken)
            print(f"round {number}: {name:10}{taken:6.2f} s", file=sys.stderr)
    return seconds


def second_cluster(rounds, environment, log):
    """Print what warm nodes make of a second cluster, and what memory they take."""
    contender = Contender([sys.executable, str(_HERE / "lifecycle_second.py")], environment, log)
    seconds = take_turns({"warm": contender, "cold": contender}, rounds)
    resident, own = contender.round("memory")
    contender.close()
    ratio = statistics.median(seconds["cold"]) / statistics.median(seconds["warm"])
    print(f"\nsecond cluster of two nodes on local[2], median of {rounds}: warm nodes are {ratio:.1f} times as fast\n")
    print("| nodes | until all programs have a model |")
    print("|---|---|")
    for name, each in seconds.items():
        print(f"| {name} | {median_and_range(each)} |")
    print(f"\nthe fork server has {resident} MB resident, {own} MB of them in no other process (when it has no nodes)")


def first_cluster(options, environment, log):
    """Print the roads to a first cluster, side by side."""
    old = old_python(options.old_python, options.old_venv)
    ours = Contender([sys.executable, str(_HERE / "lifecycle_ours.py")], environment, log)
    theirs = Contender([old, str(_HERE / "lifecycle_2x.py")], environment, log)
    rows = {"bare": ours, "detached": ours, "held": ours, "2.2.5": theirs}
    seconds = take_turns(rows, options.rounds)
    ours.close()
    theirs.close()
    bare = statistics.median(seconds["bare"])
    print(f"\n{versions('tensorflowonspark', 'pyspark', 'tensorflow', 'keras')}; median of {options.rounds}\n")
    print("| road | above the bare job | times the bare job | up and down |")
    print("|---|---|---|---|")
    names = {
        "bare": "a bare Spark job of two fresh `import tensorflow`",
        "detached": "ours, detached (to be fed later)",
        "held": "ours, held (reads its own data)",
        "2.2.5": "TensorFlowOnSpark 2.2.5",
    }
    for name, each in seconds.items():
        median = statistics.median(each)
        print(f"| {names[name]} | {median - bare:+.2f} s | {median / bare:.2f} | {median_and_range(each)} |")


def main():
    """Run the rounds and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--second-only", action="store_true", help="only the second cluster of an application")
    parser.add_argument("--old-python", default=sys.executable, help="3.8 to 3.11, for TensorFlow 2.15")
    parser.add_argument("--old-venv", type=Path, default=Path(".venvs/2.2.5"))
    options = parser.parse_args()
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    with open(os.devnull, "wb") as log:
        if not options.second_only:
            first_cluster(options, environment, log)
        second_cluster(options.rounds, environment, log)


if __name__ == "__main__":
    main()

"""TFRecord files read and written by Spark: how many rows per second, beside others and beside TensorFlow alone.

All read the same files, which TensorFlow made, and write DataFrames (TensorFlow: numpy arrays) that are in memory.
Those on Spark run on a standalone cluster of two one-core workers each: ours, by its own names and by those of
TensorFlowOnSpark 2.x (dfutil); TensorFlowOnSpark 2.2.5 from PyPI with tensorflow-hadoop from Maven; and LinkedIn's
spark-tfrecord from Maven, on the same Spark as ours. TensorFlow alone is a process on one core, and for reading also
one on both. What each of them reads, and what each has written, is compared once with what it should be.
"""

import argparse
import json
import math
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path

from lifecycle import old_python
from rounds import Contender, circumstances, environment, results_of
from tfrecord_report import DOCUMENT, READERS, WRITERS, draw, publish, report
from tfrecord_rows import KINDS

_HERE = Path(__file__).parent
_ROOT = _HERE.parent
_HADOOP_JAR = "org.tensorflow:tensorflow-hadoop:1.15.0"  # what 2.2.5 needs, as its documentation has it
_LINKEDIN_JAR = "com.linkedin.sparktfrecord:spark-tfrecord_2.13:0.7.0"
_FILES, _OLD_FILES = 16, 2


def maven_jar(coordinates, directory, log):
    """Return a jar from Maven Central, or None if there is none of these coordinates."""
    _, artifact, version = coordinates.split(":")
    jar = directory / f"{artifact}-{version}.jar"
    if not jar.exists():
        options = [f"-Dartifact={coordinates}:jar", f"-DoutputDirectory={directory}"]
        subprocess.run(["mvn", "--batch-mode", "dependency:copy", *options], check=False, stdout=log, stderr=log)
    return jar if jar.exists() else None


def jars(options, log):
    """Return the jar that 2.2.5 needs, and the one of spark-tfrecord, or None if there is none."""
    directory = options.results.parent / "jars"
    hadoop = maven_jar(_HADOOP_JAR, directory, log)
    if not hadoop:
        sys.exit(f"Maven did not find {_HADOOP_JAR}: see {log.name}")
    linkedin = options.spark_tfrecord or maven_jar(_LINKEDIN_JAR, directory, log)
    if not linkedin:
        print(f"Maven did not find {_LINKEDIN_JAR}: without it (--spark-tfrecord takes a jar)", file=sys.stderr)
    return hadoop, linkedin


def contenders(old, hadoop, linkedin, log):
    """Start the processes; return them by name."""
    commands = {
        "alone": [sys.executable, "tfrecord_alone.py", "1"],
        "alone, both cores": [sys.executable, "tfrecord_alone.py", "2"],
        "ours": [sys.executable, "tfrecord_ours.py"],
        "dfutil": [sys.executable, "tfrecord_2x.py"],
        "2.2.5": [old, "tfrecord_2x.py", str(hadoop)],
    }
    if linkedin:
        commands["spark-tfrecord"] = [sys.executable, "tfrecord_jar.py", str(linkedin)]
    return {
        name: Contender([python, str(_HERE / script), *arguments], environment(python), log)
        for name, (python, script, *arguments) in commands.items()
    }


class Bench:
    """Has contenders take turns on files in a directory.

    Parameters
    ----------
    processes : dict of Contender
        The contenders by name.
    directory : pathlib.Path
        Where files are; it is not kept.
    rounds : int
        How many count; one more warms up.
    scale : float
        Part of the rows.
    """

    def __init__(self, processes, directory, rounds, scale):
        self._processes = processes
        self._directory = directory
        self._rounds = rounds
        self._scale = scale

    def _rows(self, kind, road):
        parts = {"2.2.5": kind.old_rows, "rows": kind.rows / 10}
        return int(parts.get(road, kind.rows) * self._scale)

    def _ask(self, road, action, name, path, **more):
        process = {"rows": "alone", "batches": "alone"}.get(road, road)
        order = {"action": action, "kind": name, "path": str(path), "rows": self._rows(KINDS[name], road), **more}
        return self._processes[process].round(json.dumps(order))

    def _compare(self, road, found, name, doing):
        expected = self._ask("alone", "expected", name, "", rows=self._rows(KINDS[name], road))
        same = [math.isclose(one, other, rel_tol=1e-6) for one, other in zip(found, expected, strict=True)]
        if not all(same):
            sys.exit(f"{road} {doing} {name} rows that are not what they should be: {found}, not {expected}")

    def read(self, name):
        """Return the rows per second of every reader."""
        paths = {road: self._directory / f"{name} for {road}" for road in ("all", "2.2.5")}
        self._ask("alone", "write", name, paths["all"], files=_FILES)
        self._ask("alone", "write", name, paths["2.2.5"], files=_OLD_FILES, rows=self._rows(KINDS[name], "2.2.5"))
        roads = [road for road in READERS if road in self._processes]
        for road in roads:
            self._compare(road, self._ask(road, "digest", name, paths.get(road, paths["all"])), name, "reads")
        found = self._turns(roads, f"read {name}", lambda road: self._read_once(road, name, paths))
        for path in paths.values():
            shutil.rmtree(path)
        return found

    def _read_once(self, road, name, paths):
        return self._ask(road, "read", name, paths.get(road, paths["all"]))

    def write(self, name):
        """Return the rows per second of every writer."""
        roads = [road for road in WRITERS if road in self._processes or road in ("rows", "batches")]
        checked = set()

        def once(road):
            path = self._directory / "written"
            rate = self._ask(road, "write rows" if road == "rows" else "write", name, path)
            if road not in checked:
                self._compare(road, self._ask("alone", "digest", name, path), name, "writes")
                checked.add(road)
            shutil.rmtree(path)
            return rate

        return self._turns(roads, f"write {name}", once)

    def _turns(self, roads, part, once):
        found = {}
        for number in range(self._rounds + 1):
            for road in roads:
                rate = once(road)
                print(f"round {number}: {part}, {road}: {rate:,.0f}", file=sys.stderr, flush=True)
                if number:  # the first warms up
                    found.setdefault(road, []).append(rate)
        return found


def measure(options, results, log):
    """Run all rounds, and keep what was found."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.directory)))
        hadoop, linkedin = jars(options, log)
        processes = contenders(old_python(options.old_python, options.old_venv), hadoop, linkedin, log)
        for process in processes.values():
            stack.enter_context(closing(process))
        bench = Bench(processes, directory, options.rounds, options.scale)
        for name in options.kinds.split(","):
            results[f"read {name}"] = bench.read(name)
            results[f"write {name}"] = bench.write(name)
            part = f"; {options.scale:g} of the rows" if options.scale != 1 else ""
            names = ", ".join(jar.stem for jar in (hadoop, linkedin) if jar)
            results["about"] = f"{circumstances(options.rounds)}{part}; {names}"
            options.results.write_text(json.dumps(results, indent=1))


def main():
    """Run the rounds, print the tables, put them and the picture into the documentation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kinds", default=",".join(KINDS), help="which to run")
    parser.add_argument("--scale", type=float, default=1, help="part of the rows, to try it")
    parser.add_argument("--directory", type=Path, help="for the files, instead of the system's for temporary ones")
    parser.add_argument("--spark-tfrecord", type=Path, help="its jar, instead of the one from Maven")
    parser.add_argument("--old-python", default=sys.executable, help="3.8 to 3.11, for TensorFlow 2.15")
    parser.add_argument("--old-venv", type=Path, default=Path(".venvs/2.2.5"))
    parser.add_argument("--results", type=Path, default=_ROOT / "build/benchmark-tfrecord.json")
    parser.add_argument("--document", type=Path, default=DOCUMENT, help="where tables and picture go")
    parser.add_argument("--report-only", action="store_true", help="of the results that are there")
    options = parser.parse_args()
    results = results_of(options, measure)
    tables = report(results)
    print(tables)
    if all(f"write {name}" in results for name in KINDS):
        publish(tables, options.document)
        draw(results, options.document.with_suffix(".png"))


if __name__ == "__main__":
    main()

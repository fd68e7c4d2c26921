"""TFRecord files read and written by Spark: rows per second, beside others and beside TensorFlow alone.

All contenders read the same files, which TensorFlow made, and write DataFrames (TensorFlow: numpy arrays) in memory.
Those on Spark run on a standalone cluster of two one-core workers each: ours, by its own names and by those of
TensorFlowOnSpark 2.x (dfutil); TensorFlowOnSpark 2.2.5 from PyPI with tensorflow-hadoop from Maven; and LinkedIn's
spark-tfrecord from Maven, on the same Spark as ours. Spark's own way from Arrow batches to its rows, without a file, is
the limit of ours. TensorFlow alone is a process on one core, and for reading also one on both; the reader of a node,
without Spark, has one core. The content that each contender reads and writes is compared once with the expected one.
"""

import math
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks.common.command import command, run
from benchmarks.common.report import circumstances
from benchmarks.common.rounds import Contender, python_of_2x, take_turns
from benchmarks.tfrecord.report import READERS, WRITERS, draw, report
from benchmarks.tfrecord.rows import KINDS

_HADOOP_JAR = "org.tensorflow:tensorflow-hadoop:1.15.0"  # required by the documentation of 2.2.5
_LINKEDIN_JAR = "com.linkedin.sparktfrecord:spark-tfrecord_2.13:0.7.0"
_FILES, _OLD_FILES = 16, 2


def maven_jar(coordinates, directory, log):
    """Return a jar from Maven Central, or None if it has none of these coordinates."""
    _, artifact, version = coordinates.split(":")
    jar = directory / f"{artifact}-{version}.jar"
    if not jar.exists():
        options = [f"-Dartifact={coordinates}:jar", f"-DoutputDirectory={directory}"]
        subprocess.run(["mvn", "--batch-mode", "dependency:copy", *options], check=False, stdout=log, stderr=log)
    return jar if jar.exists() else None


def jars(options, log):
    """Return the jar that 2.2.5 needs, and the one of spark-tfrecord or None."""
    directory = options.results.parent.absolute() / "jars"
    hadoop = maven_jar(_HADOOP_JAR, directory, log)
    if not hadoop:
        sys.exit(f"Maven did not find {_HADOOP_JAR}: see {log.name}")
    linkedin = options.spark_tfrecord or maven_jar(_LINKEDIN_JAR, directory, log)
    if not linkedin:
        print(f"Maven did not find {_LINKEDIN_JAR}: it is left out (--spark-tfrecord takes a jar)", file=sys.stderr)
    return hadoop, linkedin


def start_contenders(options, hadoop, linkedin, stack, log):
    """Start the contenders; return them by name."""
    on_spark, alone = "benchmarks.tfrecord.contenders", "benchmarks.tfrecord.tensorflow_alone"
    commands = {
        "alone": [alone, "1"],
        "alone, both cores": [alone, "2"],
        "ours": [on_spark, "ours"],
        "limit": [on_spark, "limit"],
        "node": ["benchmarks.tfrecord.node", "1"],
        "dfutil": [on_spark, "2x"],
        "2.2.5": [on_spark, "2x", str(hadoop)],
    }
    if linkedin:
        commands["spark-tfrecord"] = [on_spark, "spark-tfrecord", str(linkedin.absolute())]
    pythons = {"2.2.5": python_of_2x(options)}
    return {
        name: stack.enter_context(Contender(["-m", *arguments], log, pythons.get(name, sys.executable)))
        for name, arguments in commands.items()
    }


class Bench:
    """The contenders and the directory of their files.

    Parameters
    ----------
    contenders : dict of Contender
        By name.
    directory : pathlib.Path
        For files; it is removed afterwards.
    options : argparse.Namespace
        From the command line.
    """

    def __init__(self, contenders, directory, options):
        self._contenders = contenders
        self._directory = directory
        self._options = options

    def _rows(self, kind, method):
        parts = {"2.2.5": kind.old_rows, "rows": kind.rows / 10}
        return int(parts.get(method, kind.rows) * self._options.scale)

    def _ask(self, method, action, name, path, **more):
        contender = {"rows": "alone", "batches": "alone"}.get(method, method)
        request = {"action": action, "kind": name, "path": str(path), "rows": self._rows(KINDS[name], method), **more}
        return self._contenders[contender].round(request)

    def _compare(self, method, found, name, verb):
        expected = self._ask("alone", "expected", name, "", rows=self._rows(KINDS[name], method))
        same = [math.isclose(one, other, rel_tol=1e-6) for one, other in zip(found, expected, strict=True)]
        if not all(same):
            sys.exit(f"{method} {verb} wrong {name} rows: {found}, expected {expected}")

    def read(self, name):
        """Return the rows per second of every reader."""
        paths = {method: self._directory / f"{name} for {method}" for method in ("all", "2.2.5")}
        self._ask("alone", "write", name, paths["all"], files=_FILES)
        self._ask("alone", "write", name, paths["2.2.5"], files=_OLD_FILES, rows=self._rows(KINDS[name], "2.2.5"))
        methods = [method for method in READERS if method in self._contenders]
        for method in set(methods) - {"limit"}:
            self._compare(method, self._ask(method, "digest", name, paths.get(method, paths["all"])), name, "reads")

        def once(method):
            return self._ask(method, "read", name, paths.get(method, paths["all"]))

        found = self._turns(methods, f"read {name}", once)
        for path in paths.values():
            shutil.rmtree(path)
        return found

    def write(self, name):
        """Return the rows per second of every writer."""
        methods = [method for method in WRITERS if method in self._contenders or method in ("rows", "batches")]
        compared = set()

        def once(method):
            path = self._directory / "written"
            rate = self._ask(method, "write rows" if method == "rows" else "write", name, path)
            if method not in compared:
                self._compare(method, self._ask("alone", "digest", name, path), name, "writes")
                compared.add(method)
            shutil.rmtree(path)
            return rate

        return self._turns(methods, f"write {name}", once)

    def _turns(self, methods, title, once):
        turns = {method: lambda method=method: once(method) for method in methods}
        return take_turns(turns, self._options.rounds, title, shown="{:,.0f}".format)


def measure(options, log):
    """Run the kinds of rows that the command line names."""
    with ExitStack() as stack:
        parent = options.directory.absolute() if options.directory else None
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=parent)))
        hadoop, linkedin = jars(options, log)
        bench = Bench(start_contenders(options, hadoop, linkedin, stack, log), directory, options)
        names = ", ".join(jar.stem for jar in (hadoop, linkedin) if jar)
        for name in options.parts.split(","):
            yield {f"read {name}": bench.read(name)}
            yield {f"write {name}": bench.write(name), "about": circumstances(options, names)}


def main():
    """Run the benchmark."""
    parser = command("tfrecord", __doc__, parts=KINDS, scaled=True, beside_2x=True)
    parser.add_argument("--directory", type=Path, help="for the files, instead of the system's for temporary ones")
    parser.add_argument("--spark-tfrecord", type=Path, help="its jar, instead of the one from Maven")
    run(parser, measure, report, draw)


if __name__ == "__main__":
    main()

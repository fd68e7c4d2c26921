"""``make keras-suite``: Keras's own tests in the nodes, compared with the list of expected failures."""

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from tensorflowonspark.keras.wheels import wheels_of
from tests.support.keras_suite.cluster import Outcome, run_suite
from tests.support.keras_suite.report import MODES, compare, page, read_expected
from tests.support.keras_suite.source import FOLDERS, files_with_tests, keras_source
from tests.support.paths import DOWNLOADS
from tests.support.published import versions

HERE = Path(__file__).parent


def main() -> int:
    """Run the suite; return 0 if all failures are expected, and all expected ones fail."""
    parser = argparse.ArgumentParser(prog="keras_suite", description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", default=FOLDERS, help="folders or test files of keras/src (all)")
    parser.add_argument("--mode", choices=MODES, action="append", help="without a strategy, or with one (both)")
    parser.add_argument("--select", default="", help="only tests whose name contains this")
    parser.add_argument("--timeout", type=float, default=120, help="seconds that a test may take")
    parser.add_argument("--record", type=Path, help="append outcomes to this file; tests in it do not run again")
    parser.add_argument("--page", type=Path, help="write the page of a whole run to this file")
    options = parser.parse_args()
    whole = tuple(options.folders) == FOLDERS and not options.select and not options.mode

    outcomes = _run(options)
    comparison = compare(outcomes, read_expected(HERE / "expected.toml"), whole=whole)
    installed = ", ".join(f"{name} {number}" for name, number in wheels_of("keras").items())
    for mode, of_mode in outcomes.items():
        kinds = {each.kind: sum(other.kind == each.kind for other in of_mode) for each in of_mode}
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        print(f"{mode}: {len(of_mode)} tests with {installed}: {counts}")
    for line in comparison.lines():
        print(line)
    if options.page and whole:
        packages = versions("tensorflowonspark", "pyspark", "tensorflow", "keras")
        minutes = sum(each.seconds for of_mode in outcomes.values() for each in of_mode) / 60
        about = f"{packages}; the tests took {minutes:.0f} minutes on two cores."
        options.page.write_text(page(outcomes, comparison, about))
    return 0 if comparison else 1


def _run(options):
    os.environ.update({"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "TF_CPP_MIN_LOG_LEVEL": "2"})
    from pyspark.sql import SparkSession

    source = keras_source(DOWNLOADS / "keras-suite")
    builder = SparkSession.builder.master("local[2]").appName("keras-suite").config("spark.ui.enabled", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    outcomes = {mode: [] for mode in options.mode or MODES}
    if options.record and options.record.exists():
        for line in options.record.read_text().splitlines():
            mode, outcome = (recorded := json.loads(line)).pop("mode"), Outcome(**recorded)
            if mode in outcomes:
                outcomes[mode].append(outcome)
    try:
        for mode, of_mode in outcomes.items():
            done = [each.test for each in of_mode]
            for folder in options.folders:
                files = files_with_tests(source, [folder])
                how = {"strategy": mode == "strategy", "timeout": options.timeout, "select": options.select}
                for outcome in run_suite(spark, source, files, **how, done=done):
                    of_mode.append(outcome)
                    _show(mode, outcome, options.record)
    finally:
        spark.stop()
    return outcomes


def _show(mode, outcome, record):
    if outcome.kind not in ("passed", "skipped"):
        last = (outcome.error.strip().splitlines() or [""])[0]
        print(f"{mode} {outcome.test}: {outcome.kind}: {last}", file=sys.stderr, flush=True)
    if record:
        with record.open("a") as lines:
            lines.write(json.dumps({"mode": mode, **asdict(outcome)}) + "\n")


if __name__ == "__main__":
    sys.exit(main())

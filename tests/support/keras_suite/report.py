"""Comparison of the suite's outcomes with the expected failures, and the page that shows both."""

from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where pytest brings this one
    import tomli as tomllib

from tests.support.keras_suite.cluster import Outcome
from tests.support.published import table

__all__ = ["KINDS", "MODES", "Comparison", "Expected", "compare", "page", "read_expected"]

MODES = {"none": "without a strategy", "strategy": "in `MultiWorkerMirroredStrategy`"}
KINDS = {
    "package": "needs a package that is not installed",
    "keras": "Keras can't do it under any strategy",
    "refused": "refused by name",
    "more": "works here, and the test wants Keras's error",
    "test": "the test itself assumes one process",
}
_SETTLED = ("passed", "skipped")


@dataclass(frozen=True)
class Expected:
    """Tests that are expected to fail for one reason.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    reason : str
        What can't be had, in one line.
    error : str
        What the failure's message contains.
    tests : tuple of str
        Patterns of test names, each of which must fail; without any, every failure with this message is expected.
    modes : tuple of str
        Of `MODES`.
    outcome : str
        "failed", or another kind of `Outcome`.
    """

    kind: str
    reason: str
    error: str
    tests: tuple[str, ...] = ()
    modes: tuple[str, ...] = tuple(MODES)
    outcome: str = "failed"

    def __post_init__(self):
        if self.kind not in KINDS or not set(self.modes) <= set(MODES):
            raise ValueError(f"{self.reason}: kind={self.kind!r}, modes={self.modes!r}")

    def names(self, test: str) -> bool:
        """Return whether one of the patterns is of this test."""
        return any(_matches(test, pattern) for pattern in self.tests)

    def explains(self, mode: str, outcome: Outcome) -> bool:
        """Return whether an outcome is the expected failure."""
        return (
            mode in self.modes
            and outcome.kind == self.outcome
            and self.error in outcome.error + outcome.traceback
            and (not self.tests or self.names(outcome.test))
        )


def read_expected(path: Path) -> list[Expected]:
    """Read the list of expected failures."""
    entries = tomllib.loads(path.read_text())["expected"]
    return [Expected(**{name: tuple(v) if isinstance(v, list) else v for name, v in each.items()}) for each in entries]


@dataclass
class Comparison:
    """What a run shows against the list.

    Parameters
    ----------
    explained : list of (str, Outcome, Expected)
        Mode, failure and its reason.
    unknown : list of (str, Outcome)
        Failures without a reason.
    passing : list of (str, str)
        Mode and test of expected failures that pass, or skip themselves.
    missing : list of (str, str)
        Mode and pattern of expected failures of which no test ran.
    """

    explained: list
    unknown: list
    passing: list
    missing: list

    def __bool__(self) -> bool:
        return not (self.unknown or self.passing or self.missing)

    def lines(self):
        """Yield the differences as lines of a diff: what failed and should not have, and the reverse."""
        for mode, outcome in self.unknown:
            yield f"+ {mode} {outcome.test}: {outcome.kind}: {outcome.error.strip()}"
        for mode, test in self.passing:
            yield f"- {mode} {test}: expected to fail, and does not"
        for mode, pattern in self.missing:
            yield f"- {mode} {pattern}: expected to fail, and no such test ran"


def compare(outcomes: dict[str, list[Outcome]], expected: list[Expected], *, whole: bool = True) -> Comparison:
    """Compare the outcomes of each mode with the expected failures.

    Parameters
    ----------
    outcomes : dict of str to list of Outcome
        By mode.
    expected : list of Expected
        The first one that explains a failure counts.
    whole : bool
        Whether all tests ran, so that an expected failure that is absent is a difference.
    """
    found = Comparison([], [], [], [])
    for mode, of_mode in outcomes.items():
        here = [each for each in expected if mode in each.modes]
        for outcome in of_mode:
            if outcome.kind in _SETTLED:
                if any(each.names(outcome.test) for each in here):
                    found.passing.append((mode, outcome.test))
                continue
            reason = next((each for each in here if each.explains(mode, outcome)), None)
            if reason:
                found.explained.append((mode, outcome, reason))
            else:
                found.unknown.append((mode, outcome))
        patterns = [pattern for each in here for pattern in each.tests] if whole else []
        for pattern in patterns:
            if not any(_matches(outcome.test, pattern) for outcome in of_mode):
                found.missing.append((mode, pattern))
    return found


def page(outcomes: dict[str, list[Outcome]], comparison: Comparison, about: str) -> str:
    """Return the page: counts for each file, and the reasons with their tests.

    Parameters
    ----------
    outcomes, comparison
        Of a whole run.
    about : str
        Date, versions and duration.
    """
    files = list(dict.fromkeys(_file(each) for of_mode in outcomes.values() for each in of_mode))
    rows = [[f"`{name}`", *(_counts(_of(name, outcomes[mode])) for mode in outcomes)] for name in files]
    rows.append(["**all**", *(f"**{_counts(outcomes[mode])}**" for mode in outcomes)])
    parts = [_HEAD.format(about=about, targets=_targets(comparison))]
    parts.append(table(["tests of", *(MODES[mode] for mode in outcomes)], rows))
    parts.append("\n## Failures, with their reasons\n")
    reasons = list(dict.fromkeys(each for _, _, each in comparison.explained))
    rows = []
    for kind, title in KINDS.items():
        for reason in (each for each in reasons if each.kind == kind):
            count = Counter(mode for mode, _, each in comparison.explained if each is reason)
            rows.append([title, reason.reason, *(str(count[mode] or "") for mode in outcomes)])
    parts.append(table(["kind", "reason", *(MODES[mode] for mode in outcomes)], rows))
    unknown = [f"- `{outcome.test}`, {MODES[mode]}: {outcome.kind}" for mode, outcome in comparison.unknown]
    if unknown:
        parts.append("\n## Failures without a reason\n\n" + "\n".join(unknown))
    return "\n".join(parts) + "\n"


def _targets(comparison):
    unknown = len(comparison.unknown)
    row = ["failures without a reason", "0", str(unknown), "**missed**" if unknown else "met"]
    return table(["what", "target", "measured", "met or missed"], [row])


def _matches(test, pattern):
    return fnmatchcase(test, pattern)


def _file(outcome):
    return outcome.test.partition("::")[0]


def _of(name, outcomes):
    return [each for each in outcomes if _file(each) == name]


def _counts(outcomes):
    kinds = Counter(each.kind if each.kind in _SETTLED else "failed" for each in outcomes)
    named = [f"{kinds['passed']} passed"]
    named += [f"{kinds[each]} {each}" for each in ("failed", "skipped") if kinds[each]]
    return ", ".join(named)


_HEAD = """# Keras's own tests in the nodes of a cluster

```console
$ make keras-suite
```

{targets}

The tests of Keras's trainers, callbacks, optimizers, metrics and models, from the source distribution of the installed
version. They run in the nodes of a cluster of two workers (`tfos.run(spark, program, num_workers=2)` on `local[2]`):
once without a strategy, and once with each test's `setUp` entering the scope of one `MultiWorkerMirroredStrategy`. Both
workers run all tests in the same order with the same seed, and agree after each test whether it failed. A test fails if
it fails on either worker, or leaves one waiting for the other. "Skipped" are tests that skip themselves, most of them
because they are for another backend. Many tests of optimizers apply one outside of a step, which no strategy takes:
what each optimizer does in `fit` under a strategy is in [keras.md](../keras.md).

{about}
"""

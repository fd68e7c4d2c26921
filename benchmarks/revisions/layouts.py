"""The contenders of each layout of the benchmarks: arguments and requests of the cases at a revision."""

from benchmarks.feed.rows import FIT_ROWS, KINDS
from benchmarks.inference.rows import KINDS as MODELS


def layout_of(tree):
    """Return the layout of a work tree, as a function from the part of the usual rows to arguments and requests."""
    return packages if (tree / "benchmarks/common").is_dir() else flat_files


def packages(scale):
    """Return arguments and request of each case, where each benchmark is a package."""
    first, second = (["-m", "benchmarks.lifecycle.contenders", *each] for each in (["first"], ["second", "tensorflow"]))
    feed, inference = ["-m", "benchmarks.feed.contenders", "ours"], ["-m", "benchmarks.inference.contenders", "present"]
    recovery = ["-m", "benchmarks.recovery.contender"]
    rows, fit_rows, small = _rows(scale)
    floats = {"kind": "floats", "rows": rows}
    fit = {"measure": "fit", "kind": "floats", "rows": fit_rows, "epochs": 4}
    return {
        "detached": (first, {"cluster": "detached"}),
        "held": (first, {"cluster": "held"}),
        "second": (second, {"nodes": "warm"}),
        "cached": (feed, {"measure": "feed", **floats, "cache": "disk", "shuffle": True}),
        "streamed": (feed, {"measure": "feed", **floats, "cache": None, "shuffle": False}),
        "epochs": (feed, {"measure": "epochs", **floats, "epochs": 4, "dataset": True}),
        "small": (feed, {**fit, "model": "small"}),
        "middle": (feed, {**fit, "model": "middle"}),
        "transform": (inference, {"kind": "small", "method": "ours", "rows": small, "taken": small}),
        "notice": (recovery, {"measure": "notice", "warm": True}),
        "recovery": (recovery, {"measure": "recovery", "warm": True}),
    }


def flat_files(scale):
    """Return arguments and request of each case, where all benchmarks are files of one folder."""
    lifecycle, second = ["benchmarks/lifecycle_ours.py"], ["benchmarks/lifecycle_second.py"]
    feed, inference = ["benchmarks/feed_ours.py"], ["benchmarks/inference_ours.py"]
    recovery = ["benchmarks/recovery_ours.py"]
    rows, fit_rows, small = _rows(scale)
    floats = {"kind": "floats", "rows": rows}
    fit = {"do": "fit", "kind": "floats", "rows": fit_rows, "epochs": 4}
    return {
        "detached": (lifecycle, "detached"),
        "held": (lifecycle, "held"),
        "second": (second, "warm"),
        "cached": (feed, {"do": "feed", **floats, "cache": "disk", "shuffle": True}),
        "streamed": (feed, {"do": "feed", **floats, "cache": None, "shuffle": False}),
        "epochs": (feed, {"do": "epochs", **floats, "epochs": 4, "dataset": True}),
        "small": (feed, {**fit, "model": "small"}),
        "middle": (feed, {**fit, "model": "middle"}),
        "transform": (inference, {"kind": "small", "road": "ours", "rows": small, "taken": small}),
        "notice": (recovery, {"do": "notice", "warm": True}),
        "recovery": (recovery, {"do": "recovery", "warm": True}),
    }


def _rows(scale):
    """Return the rows of a feed, of a training and of an inference."""
    usual = (KINDS["floats"].rows // 2, FIT_ROWS, MODELS["small"].rows)
    return tuple(max(1_000, int(each * scale)) for each in usual)

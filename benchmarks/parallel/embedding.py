"""A table divided among the workers, beside whole ones and parameter servers: losses, memory, bytes, time, and AUC."""

import statistics
import sys

from benchmarks.common.report import Target
from benchmarks.common.rounds import Contender
from tests.support.published import table, versions

_ROWS, _LIMITED, _INTERACTIONS = 4_000_000, 16_000_000, 60_000
_SEEDS = 3
_CONTENDER = ["-m", "benchmarks.parallel.embedding_contenders"]


def _apart(found):
    return max(abs(ours - plain) for ours, plain in zip(found["sharded"], found["plain"], strict=True))


def _ratio(name, other, what):
    return lambda results: (
        statistics.median(each[what] for each in results["embedding"]["steps"][name])
        / statistics.median(each[what] for each in results["embedding"]["steps"][other])
    )


def _auc_apart(results):
    """Return the distance of the means of AUC, in standard deviations of the seeds."""
    found = results["embedding"]["auc"]
    noise = statistics.mean(statistics.stdev(found[kind]) for kind in found)
    return abs(statistics.mean(found["sharded"]) - statistics.mean(found["plain"])) / noise


TARGETS = [
    Target(
        "ShardedEmbedding: largest difference of the losses of 50 steps (SGD) to a plain Embedding, 2 and 4 workers",
        lambda results: max(map(_apart, results["embedding"]["losses"].values())),
        1e-6,
        "{:.1e}",
        at_least=False,
    ),
    Target(
        "a table that the memory limit of one worker can't hold trains on four (1: yes)",
        lambda results: float(
            "error" in results["embedding"]["limited"]["1"] and "loss" in results["embedding"]["limited"]["4"]
        ),
        1,
        "{:.0f}",
    ),
    Target("time of a step, to that with a plain Embedding", _ratio("sharded", "plain", "seconds"), 1, at_least=False),
    Target(
        "memory of a worker, to that with a plain Embedding", _ratio("sharded", "plain", "memory"), 0.7, at_least=False
    ),
    Target(
        "AUC of the recommender: distance to a plain Embedding, in standard deviations of the seeds",
        _auc_apart,
        2,
        "{:.1f}",
        at_least=False,
    ),
]


def measure(options, log):
    """Run the contenders in turns; return their results."""
    scale = options.scale
    with Contender(_CONTENDER, log) as contender:

        def run_round(**request):
            found = contender.round(request)
            print(f"{request}: {found}", file=sys.stderr, flush=True)
            return found

        small = {"rows": 100, "optimizer": "sgd"}  # each row is updated often
        losses = {str(workers): run_round(round="losses", workers=workers, **small) for workers in (2, 4)}
        limit = {"rows": int(_LIMITED * scale), "optimizer": "adagrad", "limit_mb": 1000 * scale + 400}
        limited = {str(workers): run_round(round="limited", workers=workers, **limit) for workers in (1, 4)}
        sizes = {"rows": int(_ROWS * scale), "optimizer": "adagrad", "steps": 30}
        steps = {"sharded": [], "plain": [], "servers": []}
        for _ in range(min(options.rounds, 3)):
            for kind in ("sharded", "plain"):
                steps[kind].append(run_round(round="steps", kind=kind, **sizes))
            steps["servers"].append(run_round(round="servers", **sizes))
        auc = {"sharded": [], "plain": []}
        for seed in range(_SEEDS):
            for kind, each in auc.items():
                request = {"round": "auc", "plain": kind == "plain", "seed": seed}
                found = run_round(**request, interactions=int(_INTERACTIONS * min(1, scale)))
                each.append(found["auc"])
    packages = versions("tensorflowonspark", "pyspark", "tensorflow", "keras")
    return {
        "about": f"`{options.command}`, {packages}",
        "losses": losses,
        "limited": limited,
        "limit": limit,
        "sizes": sizes,
        "steps": steps,
        "auc": auc,
        "best": found["best"],
    }


def report(results):
    """Return the section of the page."""
    found = results["embedding"]
    sizes, limit = found["sizes"], found["limit"]
    names = {
        "sharded": "`ShardedEmbedding`, 2 workers",
        "plain": "plain `Embedding`, 2 workers (MWMS)",
        "servers": "2 parameter servers, 2 workers, `tf_keras`",
    }
    rows = [
        [
            names[kind],
            *(
                f"{statistics.median(each[what] for each in rounds) * factor:,.0f}"
                for what, factor in (("seconds", 1000), ("bytes", 1 / 1000), ("memory", 1))
            ),
        ]
        for kind, rounds in found["steps"].items()
    ]
    private = all(each["private"] for rounds in found["steps"].values() for each in rounds)
    auc = [
        [
            names[kind].removesuffix(" (MWMS)"),
            f"{statistics.mean(values):.4f} ± {statistics.stdev(values):.4f}",
        ]
        for kind, values in found["auc"].items()
    ]
    limited = found["limited"]
    error = next(line for line in limited["1"].get("error", "it trains").splitlines() if line).partition(": {{")[0]
    return "\n\n".join(
        [
            f"{found['about']}; median of {len(found['steps']['plain'])} rounds.",
            "**Losses**: the largest difference over 50 steps of SGD is "
            + " and ".join(f"{_apart(each):.1e} on {workers} workers" for workers, each in found["losses"].items())
            + ".",
            f"**Memory limit**: {limit['rows']:,} rows of 16 float32 with an Adagrad slot are "
            f"{limit['rows'] * 128 / 1e6:,.0f} MB; each worker may add {limit['limit_mb']:,.0f} MB to its address "
            f"space (`RLIMIT_AS`). One worker: “{error}”. Four workers: "
            + (f"it trains (loss {limited['4']['loss']:.4f})." if "loss" in limited["4"] else "it fails."),
            f"**A step**: {sizes['rows']:,} by 16, Adagrad, 2,048 random ids, a dense layer. Bytes are those that a "
            f"worker sends{' (a loopback of its own)' if private else ' (with all else on the loopback)'}; memory is "
            "what a worker, or a parameter server, has resident at the end.",
            table(["table", "ms a step", "kB a step and worker", "MB"], rows),
            "**AUC** of [the recommender](../../benchmarks/parallel/recommender.py) on held-out rows after 5 epochs, "
            f"mean and standard deviation over {len(found['auc']['plain'])} seeds; the best possible is "
            f"{found['best']:.3f}.",
            table(["table", "AUC"], auc),
        ]
    )

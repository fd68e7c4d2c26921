"""What bounded a training, from what its workers have reported, and the setting that would help."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from tensorflowonspark.driver.metrics.metrics_store import MetricsStore
from tensorflowonspark.driver.nodes import Node
from tensorflowonspark.messages import RowSource, TrainingTotals


class Threshold:
    """The values from which on a cause counts as certain, and why there."""

    # Of a training: a shorter one is not worth a change, and its first steps are not like the others.
    LEAST_SECONDS = 5.0
    LEAST_STEPS = 20
    # Shares of the time in which rows are read, from which on they bound the steps. Reading that is ahead of the steps
    # hides behind them unless it takes nearly all of the time; rows of Spark arrive in bursts, so the steps wait for
    # them earlier; a program that waits while rows are read loses all of that time, and half of it is the larger part.
    READING_AHEAD = 0.9
    READING_ARRIVALS = 0.75
    READING_IN_TURN = 0.5
    # And up to which they do not: between the two, reading and computing take about as long.
    READING_BESIDE = 0.3
    # The share of the time before the first step, from which on feeding is the larger part of a training.
    FEEDING = 0.5
    # The ratio of the workers' times up to which they train in step: such workers end together, and have begun apart by
    # the time of tracing at most.
    SAME_TIME = 1.25
    # The cores of the other workers, as a share of the busiest one's, below which they wait for it: exchanging
    # gradients and reading ahead keep cores busy during a wait too.
    WAITING_CORES = 0.6
    # The share of their time that the others wait, from which on one worker is worth looking at, and the share of
    # theirs that it waits itself at most: in training in step, the one that the others wait for waits the least.
    OTHERS_WAIT = 0.3
    OWN_WAIT = 0.5
    # The cores that keep a worker busy: a step that computes uses one, less what it waits between two steps.
    BUSY_CORES = 0.7
    # The share of the time in which its threads could run and had no core, from which on more cores shorten the steps.
    QUEUED = 0.25
    # The seconds of a step of which the fixed costs of some milliseconds are a large part.
    SHORT_STEP = 0.02


_ROWS_SETTINGS = {
    RowSource.CACHE: "take a larger batch_size, feed fewer columns or smaller types, or cache='memory'",
    RowSource.SPARK: "give Spark more cores or partitions, or a DataFrame that it has computed before (df.cache())",
    RowSource.FILES: "keep the rows for later epochs (cache='disk'), read fewer columns, or write more row groups",
}


@dataclass(frozen=True)
class WorkerTraining:
    """The training of one worker, with its name and host: the totals since its begin (`NodeRecord.training`)."""

    name: str
    host: str
    totals: TrainingTotals
    has_gpus: bool = False
    waiting: float | None = None  # the share of its time in which it waited for other workers, if that was measured

    @property
    def seconds(self) -> float:
        """The time in which it trained."""
        return self.totals.training

    @property
    def reading(self) -> float:
        """The share of that time in which rows were read."""
        return min(1.0, self.totals.reading / self.seconds)

    @property
    def cores(self) -> float:
        """The number of cores that it used, on average."""
        return self.totals.processor / self.totals.time

    @property
    def wanted_cores(self) -> float:
        """The number of cores that it used or waited for: other processes of its host may have used them."""
        return self.cores + self.totals.queued / self.totals.time

    @property
    def waits_for_rows(self) -> bool:
        """Whether its steps wait for its rows."""
        if not self.totals.reads_ahead:
            return self.reading >= Threshold.READING_IN_TURN
        return self.reading >= (
            Threshold.READING_ARRIVALS if self.totals.source is RowSource.SPARK else Threshold.READING_AHEAD
        )

    @property
    def counts(self) -> bool:
        """Whether it trained for long enough."""
        return self.totals.total_steps >= Threshold.LEAST_STEPS and self.seconds >= Threshold.LEAST_SECONDS


def advice(workers: Sequence[WorkerTraining], *, in_step: bool = True) -> str | None:
    """Return what bounded a training and the setting that would help, in one line; None if nothing certain is known.

    With `in_step`, each worker may wait for the others in each step.

    Examples
    --------
    >>> totals = TrainingTotals(
    ...     time=60.0, total_steps=400, training=60.0, reading=58.2, source=RowSource.SPARK, reads_ahead=True
    ... )
    >>> advice([WorkerTraining("worker:0", "h1", totals)])
    'waiting for rows bounded it: reading them took 97% of 60 s. Give Spark more cores or partitions, or a DataFrame \
that it has computed before (df.cache())'
    """
    if not workers or not all(each.counts for each in workers):
        return None
    times = [each.seconds for each in workers]
    in_step = in_step and max(times) <= Threshold.SAME_TIME * min(times)
    if any(each.totals.source is None for each in workers):  # they read data of their own: only waits are known
        measured = in_step and all(each.waiting is not None for each in workers)
        slowest = _slowest(workers) if measured else None
        return None if slowest is None else _line(*_of_worker(slowest, workers))
    waiting = [each for each in workers if each.waits_for_rows]
    if waiting and (in_step or len(waiting) == len(workers)):
        return _line(*_of_rows(waiting, all_wait=len(waiting) == len(workers)))
    if any(each.reading >= Threshold.READING_BESIDE for each in workers):
        return None  # both take about as long
    slowest = _slowest(workers) if in_step else None
    return _line(*(_of_steps(workers) if slowest is None else _of_worker(slowest, workers)))


def feeding_advice(waited: float, total: float, *, can_start_early: bool) -> str | None:
    """Return the advice if the programs waited for most of the time until all rows had arrived; else None.

    Of `total` seconds of feeding and training, they are the ones from the time that all programs wanted rows until the
    last one had arrived. `can_start_early`: the feed could start with its first rows.

    Examples
    --------
    >>> feeding_advice(40.0, 60.0, can_start_early=False)
    'waiting for rows bounded it: all steps waited for 40 of 60 s until Spark had sent the last one. Give Spark more \
cores or partitions, or a DataFrame that it has computed before (df.cache())'
    """
    if total < Threshold.LEAST_SECONDS or waited < Threshold.FEEDING * total:
        return None
    early = "begin with the first ones (start='first_rows'), " if can_start_early else ""
    bound = (
        f"waiting for rows bounded it: all steps waited for {waited:.0f} of {total:.0f} s until Spark had sent the "
        "last one"
    )
    return _line(bound, f"{early}{_ROWS_SETTINGS[RowSource.SPARK]}")


def _line(bound: str, setting: str) -> str:
    return f"{bound}. {setting[0].upper()}{setting[1:]}"


def _of_rows(waiting: Sequence[WorkerTraining], *, all_wait: bool) -> tuple[str, str]:
    slowest = max(waiting, key=lambda each: each.reading)
    where = "" if all_wait else f" on {slowest.name} ({slowest.host})"
    bound = f"waiting for rows bounded it: reading them took {slowest.reading:.0%} of {slowest.seconds:.0f} s{where}"
    assert slowest.totals.source is not None
    setting = _ROWS_SETTINGS[slowest.totals.source]
    return bound, setting if slowest.totals.reads_ahead else f"read ahead of the steps with ctx.dataset, or {setting}"


def _slowest(workers: Sequence[WorkerTraining]) -> WorkerTraining | None:
    """Return the worker for which the others wait, if that is certain: a GPU computes without processor time."""
    waits = [each.waiting for each in workers if each.waiting is not None]
    if len(waits) == len(workers) > 1:
        return _least_waiting(workers)
    busiest, *others = sorted(workers, key=lambda each: each.wanted_cores, reverse=True)
    certain = others and busiest.wanted_cores >= Threshold.BUSY_CORES and not any(each.has_gpus for each in workers)
    return busiest if certain and others[0].wanted_cores < Threshold.WAITING_CORES * busiest.wanted_cores else None


def _least_waiting(workers: Sequence[WorkerTraining]) -> WorkerTraining | None:
    slowest, *others = sorted(workers, key=lambda each: each.waiting or 0.0)
    least = others[0].waiting or 0.0
    return slowest if least >= Threshold.OTHERS_WAIT and (slowest.waiting or 0.0) < Threshold.OWN_WAIT * least else None


def _of_worker(slowest: WorkerTraining, workers: Sequence[WorkerTraining]) -> tuple[str, str]:
    if slowest.waiting is not None:
        least = min(each.waiting or 0.0 for each in workers if each is not slowest)
        bound = (
            f"waiting for other workers bounded it: {slowest.name} on {slowest.host} waited for the others in "
            f"{slowest.waiting:.0%} of its time, and they for it in at least {least:.0%}"
        )
        return bound, "look what it does beside its steps, free its host of other work, or give it as many cores"
    most = max(each.wanted_cores for each in workers if each is not slowest)
    bound = (
        f"waiting for other workers bounded it: {slowest.name} on {slowest.host} was busy with "
        f"{slowest.wanted_cores:.1f} cores, while the others waited for it with at most {most:.1f}"
    )
    return bound, "free its host of other work, give it as many cores as the others have, or even out their work"


def _of_steps(workers: Sequence[WorkerTraining]) -> tuple[str, str]:
    last = max(workers, key=lambda each: each.seconds)
    cores, wanted = (fmean(getattr(each, name) for each in workers) for name in ("cores", "wanted_cores"))
    too_few = wanted - cores >= Threshold.QUEUED * wanted
    busy = ""
    if not any(each.has_gpus for each in workers):
        of_wanted = f" of the {wanted:.1f} cores that it wanted" if too_few else " cores"
        busy = f", each worker with {cores:.1f}{of_wanted}"
    reading = max(each.reading for each in workers)
    bound = (
        f"computing bounded it: {last.totals.total_steps:,} steps took {last.seconds:.0f} s{busy}, and reading rows "
        f"{reading:.0%} of that time"
    )
    if last.seconds < Threshold.SHORT_STEP * last.totals.total_steps:
        at_once = ", or compile(steps_per_execution=10)" if last.totals.reads_ahead else ""
        return bound, f"take a larger batch_size{at_once}"
    if busy and too_few:
        return bound, "give each worker more cores (fewer nodes on a host), or a GPU"
    if busy and cores < Threshold.BUSY_CORES:
        return bound, "look for waits in the program and between the hosts; a larger batch_size takes fewer steps"
    return bound, "give each worker more cores or a GPU, or take more workers"


def training_advice(fed: Sequence[Node], store: MetricsStore, *, in_step: bool) -> str | None:
    """Return the advice for the present training, or the last one; None if a worker's is not measured."""
    workers = []
    for node in fed:
        record = store.record(node.number)
        totals = record.training
        if totals is None:
            return None  # it has had too few rows, or was lost
        has_gpus = bool(node.member and node.member.gpus)
        workers.append(WorkerTraining(str(node.role), node.host, totals, has_gpus, record.waiting_share))
    return advice(workers, in_step=in_step)

"""Runs programs on workers and in one process: an outcome of each is written to a file.

A cluster runs all programs, one after the other, with one feed for each shape. Where one does not end, its cluster is
ended, and another one goes on with the next program.
"""

import faulthandler
import os
import pickle
import subprocess
import sys
import traceback
from pathlib import Path

import tensorflowonspark as tfos
from tests.support.keras_table.cells import POISONED, outcome_file
from tests.support.keras_table.columns import wait_for_all
from tests.support.own_steps import data, programs
from tests.support.paths import ROOT

SECONDS = 90  # of a program on all workers


def column(backend, workers, shape):
    return f"{backend}, {workers} workers, {shape}"


def on_worker(args, ctx):
    """Run programs with the rows of each feed, on each worker."""
    import sys

    sys.path.append(args["modules"])
    strategy = None
    if args["backend"] == "tensorflow":
        import tensorflow as tf

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    from tests.support.own_steps.running import run_programs

    for (shape, names), feed in zip(args["work"], ctx.feeds(), strict=False):
        run_programs(args, shape, names, ctx.index, feed, strategy)


def run_programs(args, shape, names, worker=0, feed=None, strategy=None):
    """Run programs of one shape; go on to the next one when all workers have."""
    import keras

    from tests.support.own_steps.place import Place

    programs.load()
    directory, workers = Path(args["directory"]), args["workers"]
    steps = data.steps_of(workers, shape)
    name = column(args["backend"], workers, shape) if feed else reference_column(args["backend"], workers, shape)
    for key in names:
        keras.utils.set_random_seed(11)
        faulthandler.dump_traceback_later(args["seconds"], exit=True)
        outcome = outcome_of(programs.ALL[key], Place(workers, feed, steps, strategy))
        keras.utils.clear_session(free_memory=False)  # names begin anew
        _write(outcome_file(directory, name, key, worker), outcome)
        if feed:
            _meet(directory, name, key, worker, workers, args["seconds"])
        faulthandler.cancel_dump_traceback_later()
        if outcome[0] == "error" and any(text in outcome[1] for text in POISONED):
            raise RuntimeError(f"nothing after {key} can work in this process")


def outcome_of(program, place):
    """Return ``("value", what is compared)``, ``("refused", text, steps taken)`` or ``("error", traceback, text)``."""
    try:
        return "value", program.run(place)
    except tfos.SpecError as error:
        return "refused", str(error), place.taken
    except Exception as error:
        return "error", traceback.format_exc(), f"{type(error).__name__}: {error}"


def _write(file, outcome):
    part = file.with_suffix(".part")
    part.write_bytes(pickle.dumps(outcome))
    part.rename(file)


def _meet(directory, name, key, worker, workers, seconds):
    place = directory / "met" / outcome_file("", name, key, 0).name
    place.mkdir(parents=True, exist_ok=True)
    wait_for_all(place, "met", worker, workers, seconds)


def reference_column(backend, workers, shape):
    return f"one process beside {column(backend, workers, shape)}"


def start_reference(directory, backend, workers, work, seconds=600):
    """Start a process of plain Keras that runs the same programs with the rows of all workers."""
    environment = {
        **os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}", "KERAS_BACKEND": backend
    }  # fmt: skip
    args = {"directory": str(directory), "backend": backend, "workers": workers, "seconds": seconds}
    command = [sys.executable, "-m", "tests.support.own_steps.running"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, env=environment, **pipes)
    process.stdin.write(pickle.dumps((args, work)))
    process.stdin.close()
    process.stdin = None
    return process


def run_on_workers(clusters, directory, backend, workers, work, seconds=SECONDS):
    """Run programs on workers; return the error that ended the cluster, by shape and program, of those that stalled.

    Parameters
    ----------
    clusters : Clusters
        Starts a cluster with a function, and feeds it.
    work : list of tuple
        Shapes, and the names of programs of each.
    """
    stalled = {}
    work = [(shape, list(names)) for shape, names in work]
    while work := [(shape, names) for shape, names in work if names]:
        args = {
            "modules": str(ROOT), "directory": str(directory), "backend": backend, "workers": workers,
            "seconds": seconds, "work": work,
        }  # fmt: skip
        try:
            with clusters.start(on_worker, args, workers, {"KERAS_BACKEND": backend}) as cluster:
                for shape, _ in work:
                    clusters.feed(cluster, workers, shape)
                cluster.join()
            break
        except tfos.ClusterError as error:
            where = _first_without(directory, backend, workers, work)
            if where is None:
                break
            number, place = where
            shape, names = work[number]
            # After a program that raised the workers may not be at the same place: the next one gets another cluster.
            before = [outcomes(directory, backend, workers, shape, name) for name in names[max(place - 1, 0) : place]]
            begun = any(each is not None for each in outcomes(directory, backend, workers, shape, names[place]))
            if not begun and any(each and each[0] == "error" for found in before for each in found):
                place -= 1
            else:
                stalled[shape, names[place]] = str(error)
            work = [(shape, names[place + 1 :]), *work[number + 1 :]]
    return stalled


def _first_without(directory, backend, workers, work):
    for number, (shape, names) in enumerate(work):
        for place, name in enumerate(names):
            if None in outcomes(directory, backend, workers, shape, name):
                return number, place
    return None


def outcomes(directory, backend, workers, shape, name):
    """Return what each worker found; None for one that has not come to an end."""
    return [_read(outcome_file(directory, column(backend, workers, shape), name, each)) for each in range(workers)]


def reference(directory, backend, workers, shape, name):
    """Return what one process found."""
    return _read(outcome_file(directory, reference_column(backend, workers, shape), name, 0))


def _read(file):
    return pickle.loads(file.read_bytes()) if file.exists() else None


if __name__ == "__main__":
    given, shapes = pickle.load(sys.stdin.buffer)
    for each, chosen in shapes:
        run_programs(given, each, chosen)

"""The rows of the table: programs by group and name, how one is run, and what is kept of it."""

import pickle
import random
import traceback
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.keras_table.columns import COLUMNS, JAX, PARAMETER_SERVER

ALL: dict[str, "Cell"] = {}
SYNCHRONOUS = tuple(column for column in COLUMNS if column != PARAMETER_SERVER)
ON_TENSORFLOW = tuple(column for column in COLUMNS if column != JAX)
SYNCHRONOUS_ON_TENSORFLOW = tuple(column for column in SYNCHRONOUS if column != JAX)


@dataclass
class Cell:
    """A program, its name, and what is expected of it where it is not equal to one process.

    Attributes
    ----------
    columns : tuple of str
        Where it means anything.
    different : dict
        Keras's own reason for a difference, by column.
    refused : dict
        What the error contains, by column.
    because : str
        Why, for the page, where the error's own words do not say it.
    """

    group: str
    name: str
    run: object
    columns: tuple = COLUMNS
    different: dict = field(default_factory=dict)
    refused: dict = field(default_factory=dict)
    because: str = ""
    tolerance: float = 2e-4
    several: bool = False

    @property
    def key(self):
        return f"{self.group}: {self.name}"


def cell(group, *names, **options):
    """Register a program under a name, or under several if it takes ``names`` and returns its results by name."""

    def register(run):
        for name in names:
            one = (lambda column, name=name: run(column, name)) if len(names) > 1 else run
            made = Cell(group, name, one, **options)
            assert made.key not in ALL, made.key
            ALL[made.key] = made
        return run

    return register


def table(group, programs, **options):
    """Register programs by their names."""
    for name, run in programs.items():
        cell(group, name, **options)(run)


def on(columns, reason):
    """Return the same text for several columns."""
    return dict.fromkeys((columns,) if isinstance(columns, str) else columns, reason)


POISONED = ("Collective ops is aborted", "Collective instance", "UnavailableError")  # for the rest of the process


def run_cells(column, keys, directory, worker=0):
    """Run cells one after the other; write what each gave to a file, and go on when all workers have."""
    import keras

    place = Path(directory)
    for key in keys:
        column.begin(key)
        keras.utils.set_random_seed(11)
        random.seed(11)
        try:
            outcome = ("value", ALL[key].run(column))
            column.check_arrays()
        except Exception as error:
            outcome = ("error", f"{type(error).__name__}: {error}", traceback.format_exc())
        keras.utils.clear_session(free_memory=False)  # names begin anew
        file = outcome_file(place, column.name, key, worker)
        part = file.with_suffix(".part")
        part.write_bytes(pickle.dumps(outcome))
        part.rename(file)
        column.cell = f"after {key}"
        column.meet()
        if outcome[0] == "error" and any(text in outcome[2] for text in POISONED):
            raise RuntimeError(f"nothing after {key} can work in this process")


def outcome_file(directory, column, key, worker):
    safe = "".join(each if each.isalnum() else "_" for each in f"{column}-{key}")
    return Path(directory) / f"{safe}.{worker}.pickle"


def load():
    """Import all modules of cells."""
    from tests.support.keras_table import callbacks, datasets, layers, losses, methods, metrics, models, optimizers  # noqa: F401

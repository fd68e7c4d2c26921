"""The programs by name, and what is expected of each; `load` imports the modules that hold them."""

from dataclasses import dataclass, field

TENSORFLOW, JAX = "tensorflow", "jax"
ALL: dict[str, "Program"] = {}


@dataclass
class Program:
    """A training.

    Attributes
    ----------
    name : str
        Its name, without spaces.
    run : callable
        Takes a `Place` and returns what is compared.
    subject : str
        The module that holds it.
    backends : tuple of str
        Where it runs.
    refused : dict of str to str
        By backend: it may be refused by a `SpecError` that contains this text. It must be equal if it is not.
    different : dict of str to str
        Patterns of paths in what is compared that are different on several workers, as ``"/history/loss*"``, with the
        reason.
    """

    name: str
    run: object
    subject: str
    backends: tuple = (TENSORFLOW,)
    refused: dict = field(default_factory=dict)
    different: dict = field(default_factory=dict)


def program(name, *, on=(TENSORFLOW,), refused=None, different=None):
    """Register a program under a name.

    Parameters
    ----------
    on : tuple of str
        The backends.
    refused : str or dict of str to str, optional
        What the error contains, of the program or by backend: the name of what is refused.
    different : dict of str to str, optional
        See `Program`.
    """
    refusals = dict.fromkeys(on, refused) if isinstance(refused, str) else dict(refused or {})

    def register(run):
        assert name not in ALL, name
        ALL[name] = Program(name, run, run.__module__.rpartition(".")[2], on, refusals, dict(different or {}))
        return run

    return register


def load():
    """Import all modules of programs."""
    from tests.support.own_steps import (  # noqa: F401
        clipping,
        counting,
        generative,
        guide,
        learning,
        masked,
        padding,
        replicas,
        representing,
        state,
        stateless,
        sums,
        whole_batch,
    )


def chosen(backend, names=None):
    """Return the names of the programs of a backend, or of those that are named.

    Parameters
    ----------
    names : sequence of str
        Programs, subjects (all of their programs), or parts of programs' names.
    """
    found = [name for name, each in ALL.items() if backend in each.backends]

    def wanted(name):
        return any(part in (name, ALL[name].subject) or (part not in ALL and part in name) for part in names)

    return [name for name in found if not names or wanted(name)]

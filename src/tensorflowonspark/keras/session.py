"""The state of this process as one that trains with Keras: whom it trains with, and what runs at this time.

Keras's functions are wrapped for the whole process, and so what they have to know of each other is the process's. A
program that is no node has the same object, with nobody to train with.
"""

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorflowonspark.keras.feed_tracking import PassLength, StatePass
    from tensorflowonspark.keras.jax.cluster import JaxCluster
    from tensorflowonspark.keras.rounds import RoundWorkers
    from tensorflowonspark.keras.training_events import TrainingListener
    from tensorflowonspark.keras.workers import Workers


@dataclass
class Session:
    """What this process is a part of, and what it does at this time.

    Attributes
    ----------
    workers : Workers or None
        The workers that it trains with.
    rounds : RoundWorkers or None
        Those with which its callbacks take part in rounds.
    is_node : bool
        Whether it is a node, which rounds need.
    waits_in_rounds : bool
        Whether it has waited for other workers in a round.
    jax : JaxCluster or None
        The JAX program of several processes in which it is one.
    chose_distribution : bool
        Whether the program has set a distribution of Keras on JAX, or none.
    listener : TrainingListener or None
        It receives the events of ``fit``.
    problems : list of str
        Why it must not train on several replicas.
    first_step : int
        With which step of its epoch the next pass begins.
    skipped : int
        The steps of its epoch that the latest pass leaves out.
    length : PassLength or None
        That of Keras's current pass, if it becomes known only in it.
    state_passes : list of StatePass
        Passes that find the state of layers, the innermost one last.
    predicts, predicts_together : int
        How many calls of ``predict`` run: of this worker alone, and of all workers together. A strategy's replicas run
        in threads of their own, which would not see a context variable.
    call : str
        The method of the model that reads data on JAX.
    needs_weights : bool
        Whether a feed's dataset must have the weights of its rows for that.
    building : ContextVar of bool
        Whether a model is built in this thread: traced to make its variables, without a step. Keras does so in a
        stateless scope, which records what is assigned: optimizers update nothing, and metrics take no branch.
    """

    workers: "Workers | None" = None
    rounds: "RoundWorkers | None" = None
    is_node: bool = False
    waits_in_rounds: bool = False
    jax: "JaxCluster | None" = None
    chose_distribution: bool = False
    listener: "TrainingListener | None" = None
    problems: list[str] = field(default_factory=list)
    first_step: int = 0
    skipped: int = 0
    length: "PassLength | None" = None
    state_passes: "list[StatePass]" = field(default_factory=list)
    predicts: int = 0
    predicts_together: int = 0
    call: str = "fit"
    needs_weights: bool = True
    building: ContextVar[bool] = field(default_factory=lambda: ContextVar("building", default=False))


session = Session()

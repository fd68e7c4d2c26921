"""What happens when a node fails: a row for each case, with the reason."""

import pytest

from tensorflowonspark.config import ClusterConfig, ClusterSpec
from tensorflowonspark.driver.decision import (
    EndAttempt,
    Ended,
    Failure,
    Keep,
    Lose,
    Raise,
    Replace,
    Restart,
    Running,
    Used,
    decide,
)
from tensorflowonspark.driver.restart_budget import RestartBudget
from tensorflowonspark.errors import FailureKind, NodeError, SlotsError, StartError
from tensorflowonspark.restart_policy import RestartPolicy

CAUSES = [kind.name.lower() for kind in FailureKind]
TOGETHER, ALONE = RestartPolicy(3, backoff=2, max_backoff=5), RestartPolicy(2, backoff=2, scope="node")
NO_FAILURES, AS_FAILURES = RestartPolicy(0, max_preemptions=2), RestartPolicy(3, backoff=2, max_preemptions=0)
TAKEN, PERHAPS = Failure("executor_lost", True), Failure("executor_lost", None)

RUNNING = [
    ("all train together", {}, "killed", EndAttempt()),
    ("its result is there, and its peers still need it", {"returned": True}, "killed", EndAttempt()),
    ("the policy restarts nodes alone", {"policy": ALONE}, "killed", Replace(0)),
    ("a second time after the backoff", {"policy": ALONE, "used": Used(1)}, "lost", Replace(2)),
    ("not as often as it likes", {"policy": ALONE, "used": Used(2)}, "killed", EndAttempt()),
    ("its program would raise again", {"policy": ALONE}, "raised", EndAttempt()),
    ("not all nodes have been up: none can be told its address", {"policy": ALONE, "complete": False}, "killed",
     EndAttempt()),
    ("there is no place for it", {"policy": ALONE, "placeable": False}, "killed", EndAttempt()),
    ("nobody waits for one that has returned", {"policy": ALONE, "returned": True}, "killed", Keep()),
    ("nor if it would raise", {"policy": ALONE, "returned": True}, "raised", Keep()),
    ("inference needs it", {"policy": ALONE, "returned": True, "answering": True}, "killed", EndAttempt()),
    ("unless others answer it, and all programs have returned",
     {"returned": True, "answering": True, "replaceable": True}, "killed", Lose()),
    ("inference does not bring a node back", {"policy": ALONE, "returned": True, "answering": True,
     "replaceable": True}, "killed", Lose()),
    ("it serves a chief, and another one serves", {"serves": True}, "killed", Lose()),
    ("the only one that serves", {"serves": True, "fed": 1}, "killed", EndAttempt()),
    ("a parameter server has the weights", {"serves": False}, "killed", EndAttempt()),
    ("the others raise what it raises", {"serves": True}, "raised", EndAttempt()),
    ("another one is the cause", {"serves": True}, "peer_lost", EndAttempt()),
    ("one that serves can come back", {"policy": ALONE, "serves": True}, "killed", Replace(0)),
    ("one that does not come back is lost", {"policy": ALONE, "serves": True, "used": Used(2)}, "killed", Lose()),
    ("for one that has no place too", {"policy": ALONE, "serves": True, "placeable": False}, "killed", Lose()),
    ("the address of a parameter server is fixed", {"policy": ALONE, "serves": False}, "killed", EndAttempt()),
    ("enough others are in the round", {"rounds": (2, 2)}, "killed", Lose()),
    ("as few as min_workers must be left", {"rounds": (1, 2)}, "killed", EndAttempt()),
    ("at least one must be left", {"rounds": (0, 0)}, "killed", EndAttempt()),
    ("the chief saves the weights", {"rounds": (2, 1), "chief": True}, "killed", EndAttempt()),
    ("the others of a round would raise it too", {"rounds": (2, 1)}, "raised", EndAttempt()),
    ("one in rounds comes back first", {"policy": ALONE, "rounds": (2, 1)}, "killed", Replace(0)),
    ("and is lost if it does not", {"policy": ALONE, "rounds": (2, 1), "used": Used(2)}, "killed", Lose()),
    ("a preemption is no restart", {"policy": ALONE, "used": Used(2, 19)}, TAKEN, Replace(0, preemption=True)),
    ("until there were ten for each", {"policy": ALONE, "used": Used(1, 20)}, TAKEN, Replace(2)),
    ("and no restart is left either", {"policy": ALONE, "used": Used(2, 20)}, TAKEN, EndAttempt()),
    ("its process is retired until that is known", {"policy": ALONE, "used": Used(2)}, PERHAPS,
     Replace(0, preemption=True)),
    ("nothing is left for either", {"policy": ALONE, "used": Used(2, 20)}, PERHAPS, EndAttempt()),
]  # fmt: skip

FAULTS = [cause for cause in CAUSES if cause not in ("raised", "grown")]
ENDED = [
    *((f"{cause} may be gone with other processes", {}, cause, Restart(0)) for cause in FAULTS),
    ("a program would raise again", {}, "raised", Raise()),
    ("the user says that it may not", {"policy": RestartPolicy(3, causes=["raised"])}, "raised", Restart(0)),
    ("and names all other causes", {"policy": RestartPolicy(3, causes=["raised"])}, "killed", Raise()),
    ("the backoff doubles", {"used": Used(2)}, "killed", Restart(4)),
    ("there were three", {"used": Used(3)}, "killed", Raise()),
    ("none is allowed", {"policy": RestartPolicy(0)}, "killed", Raise()),
    ("it never came up", {}, "no_start", Raise()),
    ("a restart that does not come up has its cause", {"used": Used(1)}, "no_start", Restart(2)),
    ("slots were waited for", {"used": Used(1)}, "no_slots", Raise()),
    ("the node has had its restarts", {"alone": True}, "killed", Raise()),
    ("a stream's rows are gone", {"rows_again": False}, "killed", Raise()),
    ("a preemption uses up no restart", {"used": Used(3, 29)}, TAKEN, Restart(0, preemption=True)),
    ("ten of them for each restart", {"used": Used(3, 30)}, TAKEN, Raise()),
    ("further ones count as restarts", {"used": Used(1, 30)}, TAKEN, Restart(2)),
    ("none is allowed, of either", {"policy": RestartPolicy(0)}, TAKEN, Raise()),
    ("of preemptions alone", {"policy": NO_FAILURES}, TAKEN, Restart(0, preemption=True)),
    ("of nothing else", {"policy": NO_FAILURES}, "executor_lost", Raise()),
    ("the user counts them as restarts", {"policy": AS_FAILURES, "used": Used(1)}, TAKEN, Restart(2)),
    ("the user excludes the cause", {"policy": RestartPolicy(3, causes=["killed"])}, TAKEN, Raise()),
    ("after a preemption it does not come up", {"used": Used(0, 1)}, "no_start", Restart(0)),
    ("a preempted stream's rows are gone", {"rows_again": False}, TAKEN, Raise()),
    ("more workers are taken in whatever was before", {"used": Used(3, 30, 9)}, "grown", Restart(0, growth=True)),
    ("but not where nothing is started again", {"policy": RestartPolicy(0)}, "grown", Raise()),
    ("nor a stream's, whose rows are gone", {"rows_again": False}, "grown", Raise()),
]


def of(failure):
    return failure if isinstance(failure, Failure) else Failure(failure)


@pytest.mark.parametrize(("known", "failure", "decision"), [pytest.param(*row[1:], id=row[0]) for row in RUNNING])
def test_while_the_others_run(known, failure, decision):
    assert decide(Running(**{"policy": TOGETHER, **known}), of(failure)) == decision


@pytest.mark.parametrize(("known", "failure", "decision"), [pytest.param(*row[1:], id=row[0]) for row in ENDED])
def test_when_the_attempt_has_ended(known, failure, decision):
    assert decide(Ended(**{"policy": TOGETHER, **known}), of(failure)) == decision


def test_each_restart_is_counted():
    budget = RestartBudget(ClusterConfig(ClusterSpec(num_workers=1), b"", restarts=TOGETHER))
    killed = NodeError("worker:0", "h1", "it did", cause="killed")
    assert [budget.spend(error) for error in (killed, StartError("worker:1 is missing"), killed)] == [0, 2, 4]
    for error in (killed, SlotsError(2, 1, "add executors")):
        with pytest.raises(type(error)):
            budget.spend(error)
    assert budget.spend(NodeError("worker:0", "h1", "it is gone", cause="lost"), preempted=True) == 0
    assert budget.used == 4


def test_hosts_that_do_not_answer_are_looked_for_before_a_restart_alone():
    """To look for them takes seconds, for which an error that ends the cluster would have to wait."""
    budget = RestartBudget(ClusterConfig(ClusterSpec(num_workers=1), b"", restarts=RestartPolicy(1)))
    killed, looked = NodeError("worker:0", "h1", "it did", cause="killed"), []

    def without():
        looked.append(None)
        return ", without h1"

    budget.spend(killed, without=without)
    with pytest.raises(NodeError):
        budget.spend(killed, without=without)
    assert len(looked) == 1


@pytest.mark.parametrize(("lost", "cause"), [(True, "executor_lost"), (False, "no_start")])
def test_a_start_that_an_executor_ends_has_its_cause(lost, cause):
    assert Failure.of(StartError("Spark's barrier stage failed", executor_lost=lost)) == Failure(cause)

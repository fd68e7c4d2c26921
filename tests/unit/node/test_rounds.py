"""Rounds of local SGD: threads with real servers and the driver's own logic; links are queues."""

import threading
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies

from tensorflowonspark.errors import ClusterError
from tensorflowonspark.messages import RoundPlan, RoundResult
from tensorflowonspark.node.rounds.codec import BLOCK, PIECE, decode, encode
from tensorflowonspark.node.rounds.member import RoundMember, _WeightsHeader
from tensorflowonspark.transport import ConnectionLost
from tests.support.rounds import Group, training
from tests.support.rounds import settings as round_settings


@pytest.fixture
def group():
    """Make groups of workers, and end them."""
    made = []

    def make(workers, **settings):
        made.append(Group(workers, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


def changes_of(size, workers, rounds):
    drawn = np.random.default_rng(0).normal(size=(workers, rounds, size)).astype(np.float32)
    return drawn, lambda number, at: drawn[number, at]


def assert_equal(shared):
    first, *others = shared
    assert all(each.version == first.version for each in others)
    for each in others:
        np.testing.assert_array_equal(each.weights, first.weights)
        np.testing.assert_array_equal(each.momentum, first.momentum)


# ---- averages


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("size", [2, 1_000, PIECE * 3 + 5])
def test_all_workers_have_the_mean_bit_for_bit(group, size, half):
    drawn, changes = changes_of(size, 3, 2)
    shared = group(3).run(training(round_settings(size, half=half), changes, 2))
    assert len(shared) == 3
    assert_equal(shared.values())
    np.testing.assert_allclose(shared[0].weights, drawn.sum(axis=1).mean(axis=0), atol=4e-3 if half else 1e-5)


def test_weights_of_float64_stay_exact(group):
    """Also those that a worker takes which comes late, and with an outer optimizer."""
    made = group(2)
    fraction = np.array([1 / 3, 2.0**40 + 2.0**-12, -1e-300])
    changes = {0: fraction, 1: 2 * fraction}

    def program(member):
        number = member._setup.number
        given = round_settings(3, double=True, learning_rate=0.5, momentum=0.5)
        shared, _ = member.join(given, fraction if number == 0 else np.zeros(3))
        joined = shared.weights
        shared, _ = member.average(joined + changes[number], 1, False)
        member.average(shared.weights, 0, True)
        return joined, shared

    for joined, shared in made.run(program).values():
        np.testing.assert_array_equal(joined, fraction)
        mean = ((fraction + fraction) - fraction + ((fraction + 2 * fraction) - fraction)) / 2
        np.testing.assert_array_equal(shared.momentum, mean)
        np.testing.assert_array_equal(shared.weights, fraction + 0.5 * (mean + 0.5 * mean))


def test_diloco_takes_the_same_steps_as_nesterovs_momentum(group):
    drawn, changes = changes_of(50, 2, 4)
    given = round_settings(50, learning_rate=0.7, momentum=0.9)
    shared = group(2).run(training(given, changes, 4))
    weights, momentum = np.zeros(50), np.zeros(50)
    for mean in drawn.astype(float).mean(axis=0):
        momentum = 0.9 * momentum - mean
        weights = weights - 0.7 * (-mean + 0.9 * momentum)
    assert_equal(shared.values())
    np.testing.assert_allclose(shared[0].weights, weights, rtol=1e-4, atol=1e-5)


def test_weights_that_are_not_trained_are_averaged_beside_an_outer_optimizer(group):
    given = round_settings(3, shapes=((2,), (1,)), trained=2, learning_rate=0.5, momentum=0.9)
    shared = group(2).run(training(given, lambda number, _: np.full(3, number, np.float32), 1))
    np.testing.assert_allclose(shared[0].weights, [0.475, 0.475, 0.5])


def test_all_begin_with_the_weights_of_the_first_worker(group):
    shared = group(3).run(lambda member: member.join(round_settings(4), np.full(4, member._setup.number, "f4"))[0])
    assert [each.weights.tolist() for each in shared.values()] == [[0.0] * 4] * 3


def test_a_worker_alone_sends_nothing(group):
    alone = group(1)
    drawn, changes = changes_of(10, 1, 3)
    shared = alone.run(training(round_settings(10), changes, 3))
    np.testing.assert_allclose(shared[0].weights, drawn[0].sum(axis=0), rtol=1e-5)
    assert alone.members[0].sent_bytes == 0


def test_float16_needs_half_the_bytes(group):
    sent = []
    for half in (False, True):
        made = group(2)
        _, changes = changes_of(100_000, 2, 3)
        made.run(training(round_settings(100_000, half=half), changes, 3))
        sent.append(made.members[1].sent_bytes)
    assert sent[1] < 0.51 * sent[0]


def test_workers_may_take_different_numbers_of_steps(group):
    made = group(3)
    rounds = {0: 2, 1: 5, 2: 3}

    def program(member):
        own = rounds[member._setup.number]
        return training(round_settings(20), lambda number, at: np.full(20, number + at, np.float32), own)(member)

    shared = made.run(program)
    assert len(shared) == 3
    assert_equal(shared.values())


def test_two_trainings_follow_each_other(group):
    def program(member):
        first = training(round_settings(6), lambda number, _: np.full(6, number, np.float32), 2)(member)
        return first, training(round_settings(6), lambda number, _: np.full(6, -number, np.float32), 1)(member)

    shared = group(2).run(program)
    for training_number in range(2):
        assert_equal([each[training_number] for each in shared.values()])


def test_weights_are_encrypted_with_tls(group):
    shared = group(2, tls=True).run(training(round_settings(9), lambda number, _: np.full(9, number, np.float32), 2))
    assert_equal(shared.values())
    assert shared[0].weights.tolist() == [1.0] * 9


def test_weights_are_sent_once_they_are_asked_for_completely(group):
    """A call that ended before would fail where it is made, and that worker would train without these weights."""
    made, asked = group(1), []
    made.run(training(round_settings(9), lambda number, _: np.ones(9, np.float32), 1))

    def requests():
        asked.append("all")
        yield from ()

    assert next(made.members[0]._serve(_WeightsHeader(0, 1.0), requests()))
    assert asked == ["all"]


def test_a_connection_that_breaks_costs_no_contribution(group, monkeypatch):
    """As to a host that is too busy to authenticate it in time, and whose worker is alive."""
    connection, broken = RoundMember._connection, []

    def breaking(member, peer):
        if len(broken) < 2 and member._shared is not None and member not in broken:
            broken.append(member)
            raise ConnectionLost("broken")
        return connection(member, peer)

    monkeypatch.setattr(RoundMember, "_connection", breaking)
    shared = group(2).run(training(round_settings(9), lambda number, _: np.full(9, number, np.float32), 2))
    assert len(broken) == 2
    assert_equal(shared.values())
    assert shared[0].weights.tolist() == [1.0] * 9


# ---- the compression


@given(strategies.lists(strategies.floats(-(2.0**127), 2.0**127, width=32), max_size=2 * BLOCK))
@settings(deadline=None)
def test_float16_overflows_for_no_value(values):
    vector = np.array(values, np.float32)
    decoded = decode(encode(vector, half=True), len(vector), half=True)
    for start in range(0, len(vector), BLOCK):
        block, result = vector[start : start + BLOCK].astype(float), decoded[start : start + BLOCK].astype(float)
        error = np.abs(block - result)
        assert (error <= np.maximum(np.abs(block) * 2.0**-11, np.abs(block).max() * 2.0**-38) + 2.0**-120).all()


def test_bytes_of_another_size_are_refused():
    with pytest.raises(ValueError, match="7 bytes are not 2 values: all workers must run the same version"):
        decode(b"1234567", 2, half=False)


# ---- workers that are lost, late, or new


def test_a_worker_that_dies_after_it_served_one_of_two_is_left_out(group):
    made = group(3)
    served = threading.Semaphore(0)
    drawn, changes = changes_of(30, 3, 2)

    def program(member):
        if member._setup.number == 2:
            serve = member._serve

            def dying(header, batches):
                answers = serve(header, batches)
                if not hasattr(header, "number"):  # it asks for weights
                    yield from answers
                    return
                served.release()
                if not served.acquire(blocking=False) or made.links[2].dead:
                    return
                yield from answers
                made.kill(2)

            member._serve = dying
        return training(round_settings(30), changes, 2)(member)

    shared = made.run(program)
    assert set(shared) == {0, 1}
    assert_equal(shared.values())
    np.testing.assert_allclose(shared[0].weights, drawn[:2].sum(axis=1).mean(axis=0), rtol=1e-4, atol=1e-5)


@pytest.mark.deep
def test_a_worker_that_starts_late_takes_part_for_its_whole_training(group):
    made = group(2)
    given = round_settings(4, timeout=0.3)

    def changes(number, at):
        time.sleep(0.1)
        return np.full(4, number, np.float32)

    made.start(0, training(given, changes, 8))
    time.sleep(0.8)
    made.start(1, training(given, changes, 8))
    shared = made.join()
    assert_equal(shared.values())
    plans = [[peer.number for peer in m.contributors] for to, m in made.sent if isinstance(m, RoundPlan) and to == 1]
    assert len(plans) >= 7


def test_a_worker_that_starts_when_the_others_have_ended_takes_their_weights(group):
    made = group(2)
    given = round_settings(4, timeout=0.3)
    made.start(0, training(given, lambda *_: np.ones(4, np.float32), 2))
    made.join()
    made.start(1, lambda member: member.join(given, np.zeros(4, np.float32)))
    taken, ended = made.join()[1]
    assert ended
    assert taken.weights.tolist() == [2.0] * 4


@pytest.mark.deep
def test_a_slow_worker_misses_a_round_and_joins_the_next(group):
    made = group(3)

    def changes(number, at):
        if (number, at) == (1, 1):
            time.sleep(1.0)
        elif at:
            time.sleep(0.2)
        return np.full(4, number, np.float32)

    shared = made.run(training(round_settings(4, timeout=0.4), changes, 8))
    assert set(shared) == {0, 1, 2}
    assert_equal(shared.values())
    plans = {m.number: [p.number for p in m.contributors] for _, m in made.sent if isinstance(m, RoundPlan)}
    missed = list(plans.values()).index([0, 2])
    assert [0, 1, 2] in list(plans.values())[missed:]


def test_nobody_waits_for_the_whole_training_of_a_worker_that_is_started_again(group):
    made = group(2)
    given = round_settings(8)
    steps = []

    def many(number, at):
        steps.append(at)
        time.sleep(0.05)
        return np.ones(8, np.float32)

    def changes(number, at):
        if (number, at) == (1, 1):
            made.kill(1)
            made.start(1, training(given, many, 1000))
        time.sleep(0.1)
        return np.full(8, number + 1, np.float32)

    shared = made.run(training(given, changes, 8))
    assert 2 < len(steps) < 20
    assert_equal(shared.values())


@pytest.mark.deep
def test_a_worker_that_stands_still_in_an_exchange_is_left_out(group):
    made = group(3)
    still = threading.Event()

    def program(member):
        if member._setup.number == 1:
            begin = member._begin

            def standing(plan, *args):
                if plan.number == 2:
                    still.wait(1.5)
                begin(plan, *args)

            member._begin = standing
        return training(round_settings(12, timeout=0.5), lambda number, at: np.full(12, number, np.float32), 4)(member)

    began = time.monotonic()
    shared = made.run(program)
    still.set()
    assert time.monotonic() - began < 20
    assert set(shared) == {0, 1, 2}
    assert_equal(shared.values())


# ---- errors


def test_too_few_workers_are_an_error_that_names_those_that_came(group):
    made = group(3)

    def changes(number, at):
        if number == 2 and at == 1:
            made.kill(2)
        return np.full(4, number, np.float32)

    with pytest.raises(ClusterError, match=r"a round needs 3 workers \(min_workers\), and within 0.5 s .* worker:1 on"):
        made.run(training(round_settings(4, timeout=0.5, min_workers=3), changes, 3))


def test_different_models_are_refused_by_the_names_of_the_nodes(group):
    made = group(2)
    shapes = {0: round_settings(4), 1: round_settings(5)}
    with pytest.raises(ClusterError, match="have different models or settings of the callback"):
        made.run(lambda member: member.join(shapes[member._setup.number], np.zeros(4, np.float32)))


def test_live_workers_that_can_not_reach_each_other_are_an_error(group, monkeypatch):
    made = group(2)

    def program(member):
        if member._setup.number == 0:
            connection = member._connection

            def elsewhere(peer):
                return connection(peer.__class__(peer.number, peer.name, peer.host, 1))

            member._connection = elsewhere
        return training(round_settings(4, timeout=0.4), lambda *_: np.ones(4, np.float32), 2)(member)

    with pytest.raises(ClusterError, match=r"can't exchange weights with other workers that are alive: worker:1 on"):
        made.run(program)


# ---- any membership


@pytest.mark.deep
@given(
    strategies.data(),
    strategies.integers(2, 5),
    strategies.integers(1, 4),
    strategies.booleans(),
)
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_whoever_dies_when_the_survivors_end_with_equal_weights(data, workers, rounds, half):
    made = Group(workers)
    victims = data.draw(strategies.lists(strategies.integers(0, workers - 1), unique=True, max_size=workers - 1))
    moments = {
        victim: data.draw(strategies.tuples(strategies.integers(0, rounds - 1), strategies.floats(0, 0.05)))
        for victim in victims
    }
    returning = {victim: data.draw(strategies.booleans()) for victim in victims}
    size = data.draw(strategies.sampled_from([1, 7, 5_000]))
    given = round_settings(size, half=half, learning_rate=0.7, momentum=0.9, timeout=30.0)
    killers = []

    def die(victim):
        made.kill(victim)
        if returning[victim]:
            made.start(victim, training(given, lambda number, at: np.ones(size, np.float32), rounds))

    def changes(number, at):
        if number in moments and moments[number][0] == at:
            _, seconds = moments.pop(number)
            killer = threading.Timer(seconds, die, [number])  # in the round that it reaches meanwhile, or later
            killer.start()
            killers.append(killer)
        return np.random.default_rng([number, at]).normal(size=size).astype(np.float32)

    try:
        made.run(training(given, changes, rounds))
        for killer in killers:
            killer.join()
        shared = made.join()
        results = [message for _, message in made.sent if isinstance(message, RoundResult) and message.final]
        # A worker that is started again when all others are gone trains alone.
        final = max(each.number for each in results)
        ended = [each for each in shared.values() if each.version == final]
        assert ended
        assert_equal(ended)
        assert set(range(workers)) - set(victims) <= set(shared)
    finally:
        made.close()

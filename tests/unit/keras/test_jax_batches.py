"""What the workers of a JAX program agree on before a pass, and how batches are padded; without JAX."""

import sys
from types import ModuleType, SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from keras import tree

from tensorflowonspark.errors import CheckpointError, SpecError
from tensorflowonspark.keras import exchanging_callbacks
from tensorflowonspark.keras.feed_tracking import row_counts
from tensorflowonspark.keras.jax import equal_batches, jax_processes, training_state
from tensorflowonspark.keras.jax.data_adapters import BatchAdapter, stacked, weighted
from tensorflowonspark.keras.jax.equal_batches import (
    ENDLESS,
    UNCOUNTED,
    Padding,
    Part,
    WorkerPass,
    agreed,
    equal_sized,
    filled,
    marked,
    shortened,
)
from tensorflowonspark.keras.jax.jax_processes import JaxCluster
from tensorflowonspark.keras.jax.short import Short
from tensorflowonspark.node.feed.plan import plan_epoch

SHAPES = (((3,), "float32"),)


def agree(own, *others, group=1):
    """Agree with workers that are all in this process."""
    with mock.patch.object(equal_batches, "combine", lambda call, value: [value, *others]):
        return agreed("fit", own, group)


def test_batches_get_the_size_of_the_largest():
    own, other = (WorkerPass(3, rows=rows, shapes=SHAPES) for rows in (7, 8))
    assert (agree(own, other).rows, agree(own, other).steps) == (8, 3)
    fed = agree(own, other, WorkerPass(None, rows=2, shapes=SHAPES))  # its feed gives it as many steps
    assert (fed.rows, fed.steps) == (8, None)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (WorkerPass(4, rows=8, shapes=SHAPES), r"numbers of steps \(worker 0: 3, worker 1: 4\): use ctx.dataset"),
        (WorkerPass(ENDLESS, rows=8, shapes=SHAPES), r"numbers of steps \(worker 0: 3, worker 1: endless\)"),
        (WorkerPass(UNCOUNTED, rows=8, shapes=SHAPES), r"numbers of steps \(worker 0: 3, worker 1: uncounted\)"),
        (WorkerPass(3, 2, rows=8, shapes=SHAPES), r"steps in an epoch \(worker 0: all, worker 1: 2\)"),
        (WorkerPass(3, rows=8, shapes=(((4,), "float32"),)), "shapes and types"),
    ],
)
def test_workers_whose_data_differ_are_refused(other, told):
    with pytest.raises(SpecError, match=told):
        agree(WorkerPass(3, rows=8, shapes=SHAPES), other)


def test_workers_that_share_a_part_of_a_batch_need_the_same_rows():
    one, two = (WorkerPass(3, rows=8, shapes=SHAPES, contents=contents) for contents in (1, 2))
    assert agree(one, one, two, two, group=2).rows == 8
    with pytest.raises(SpecError, match=r"divides a batch into 1, for 2 workers.*DeviceMesh\(\(2,\), \('batch',\)\)"):
        agree(one, two, group=2)


def test_a_batch_is_filled_up_with_repetitions_of_its_rows():
    x, y, weights = filled(({"a": np.arange(3)}, [np.ones((3, 2))], None), 5)
    assert (x["a"].tolist(), y[0].shape, weights) == ([0, 1, 2, 0, 1], (5, 2), None)
    assert filled(np.ones((0, 3), "i4"), 2).tolist() == [[0, 0, 0]] * 2


def test_the_real_rows_are_those_of_the_plan_or_those_whose_weight_is_not_minus_zero(monkeypatch):
    monkeypatch.setattr(row_counts, "padded", False)  # a feed of another test may have padded its batches
    batch = (np.ones((3, 2)), np.ones(3), np.array([1, -0.0, 0], np.float32))
    assert Padding().real(batch, 0).tolist() == [True] * 3  # of the program's own: a weight as any other
    assert Padding(fed=True).real(batch, 0).tolist() == [True, False, True]
    planned = Padding(fed=True, planned=[3, 2], rows=3)
    batch = (*batch[:2], np.array([1, -0.0, -0.0], np.float32))  # of one real row and the row of padding in batch 1
    assert [planned.real(batch, number).tolist() for number in (0, 1)] == [[True] * 3, [True, True, False]]
    turned = tuple(each[::-1] for each in (*batch[:2], np.array([1, 1, -0.0], np.float32)))
    assert Padding(fed=True, planned=[3, 2], rows=3).real(turned, 1).tolist() == [False, True, True]
    own = (*batch[:2], np.array([1, -0.0, 0.0], np.float32))  # products of weights of which some are -0.0
    assert planned.real(own, 1).tolist() == [True, True, False]
    assert planned.real(turned, 1).tolist() == [True, True, False]  # after weights of the program's own
    assert planned.real(tuple(each[:2] for each in batch), 0).tolist() == [True, False]  # of which a map dropped a row
    with pytest.raises(SpecError, match="have lost the weights"):
        Padding(fed=True).real(batch[:2], 0)
    two = np.array([1, 1, -0.0], np.float32), np.array([[1, -0.0], [-0.0, -0.0], [1, 1]], np.float32)
    assert marked((None, None, two), 3, required=True).tolist() == [True, False, False]
    assert marked({"a": np.ones(3), "sample_weight": batch[2]}, 3, required=True).tolist() == [True, False, False]


def test_a_batch_with_fewer_real_rows_says_which_they_are():
    batch = (np.ones((4, 2)), np.ones(4))
    assert shortened(batch, np.ones(4, bool), 4, 8, 2) is batch
    x, y = shortened(batch, np.array([True, False]), 4, 5, 2)
    assert (x.array is batch[0], x.real.tolist(), x.rows, x.shape) == (True, [True, False, False, False], 5, (4, 2))
    assert y is batch[1]


def test_all_batches_of_a_feed_are_equal_on_jax():
    plans = [plan_epoch([30, 11, 1], 16, index, equal=True) for index in range(3)]
    assert {(plan.batch_rows, plan.steps) for plan in plans} == {(6, 5)}
    steps = [step for plan in plans for step in plan.steps_from(0)]
    assert {step.rows for step in steps} == {6}
    assert sum(step.real for step in steps) == 42
    assert list(plan_epoch([5], 4, 0, equal=True).steps_from(1)) == [(1, 1)]  # one worker has short batches


@pytest.fixture
def two_workers(monkeypatch):
    """Have another worker beside this one; return a function that sets what it exchanges in each block.

    That returns how many batches this worker exchanges in each.
    """
    pytest.importorskip("jax")
    for name, value in {"_for_devices": lambda rows: rows, "_group": lambda: 1, "_parts": lambda: 2}.items():
        monkeypatch.setattr(equal_batches, name, value)

    def other(first, *blocks):
        answers, sizes = iter([first, *blocks]), []

        def combine(_, own):
            answer = next(answers)
            if isinstance(own, WorkerPass):
                return [own, equal_batches.replace(own, rows=answer[0], real=answer[1])]
            sizes.append(len(own))
            return [own, own if answer is None else [Part(*each) for each in answer]]

        monkeypatch.setattr(equal_batches, "combine", combine)
        return sizes

    return other


def real_rows(batch):
    """Return how many rows this worker's part of a batch has, how many of them are real, and how many all have."""
    (first, *_) = tree.flatten(batch)
    if not isinstance(first, Short):
        return len(first), len(first), 2 * len(first)
    return len(first.array), int(first.real.sum()), first.rows


def of_width(width, dtype=np.float32):
    """Return a batch of two rows of so many values, and what another worker with such a batch sends."""
    x = np.ones((2, width), dtype)
    return (x, np.zeros(2, np.float32)), (2, 2, (((width,), x.dtype.name), ((), "float32")))


def test_batches_may_have_other_shapes_in_each_step_which_all_workers_have(two_workers):
    (three, of_three), (four, of_four), (_, of_five) = map(of_width, (3, 4, 5))
    two_workers((2, 2), [of_four, of_three, of_five])
    found = list(equal_sized([three, four, three], WorkerPass(UNCOUNTED)))
    assert [each[0].shape for each in found] == [(2, 3), (2, 4), (2, 3), (2, 5)]
    assert [real_rows(each) for each in found] == [(2, 2, 4)] * 3 + [(2, 0, 2)]
    two_workers((2, 2), [of_four, of_five])
    with pytest.raises(SpecError, match=r"different shapes and types in batch 2 .*worker 0: .*3,.*worker 1: .*5,"):
        list(equal_sized([three, four, three], WorkerPass(3)))
    wide, of_wide = of_width(5 << 20)  # of which one is in memory at a time
    sizes = two_workers((2, 2), [of_wide] + [of_three] * 14, [of_three], [of_three])
    assert len(list(equal_sized([three, wide, *[three] * 16], WorkerPass(18)))) == 18
    assert sizes == [15, 1, 1]
    two_workers((2, 2), None)
    with pytest.raises(SpecError, match="batch 1 are .*int32.* and those of the first one .*float32"):
        list(equal_sized([three, of_width(3, np.int32)[0]], WorkerPass(2)))
    two_workers((2, 2))
    with pytest.raises(SpecError, match="dict on several workers|and no sparse ones"):
        list(equal_sized([(SimpleNamespace(shape=(2, 3)), np.zeros(2))], WorkerPass(2)))


def test_workers_with_fewer_batches_take_batches_without_a_real_row(two_workers):
    own = [(np.full((2, 3), n), np.full(2, n)) for n in range(3)]
    two_workers((2, 2), [(2, 2)] * 15, [(5, 4)] * 2)
    generated = iter(own)
    found = [next(equal_sized(generated, WorkerPass(UNCOUNTED)))]
    assert len(list(generated)) == 2  # which Keras, that has taken one to build a model, puts behind that one
    two_workers((2, 2), [(2, 2)] * 15, [(5, 4)] * 2)
    found = [real_rows(each) for each in equal_sized(own, WorkerPass(UNCOUNTED))]
    # The other worker has larger batches later.
    assert found == [(2, 2, 4)] * 3 + [(2, 0, 2)] * 13 + [(5, 0, 4)] * 2
    two_workers((2, 2), [(2, 2)], [(2, 2)] * 2, [])
    found = [real_rows(each) for each in equal_sized(own, WorkerPass(UNCOUNTED, per_epoch=2))]  # reads no further
    assert found == [(2, 2, 4)] * 3 + [(2, 0, 2)]


def test_a_step_in_which_no_worker_has_a_row_is_not_taken(two_workers):
    full, empty = ((np.ones((rows, 3)), np.ones(rows)) for rows in (2, 0))
    two_workers((2, 0), [(2, 1), (0, 0), (2, 2)])
    found = list(equal_sized([empty, full, empty, empty], WorkerPass(4)))
    assert [real_rows(each) for each in found] == [(2, 2, 3), (2, 0, 2)]


def test_batches_of_which_a_program_drops_rows_have_the_size_of_the_feed(two_workers):
    own = [(np.ones((rows, 3)), np.ones(rows)) for rows in (2, 5)]
    two_workers((6, 6), [(6, 6)])
    assert [real_rows(each) for each in equal_sized(own, WorkerPass(2, rows=6))] == [(6, 2, 8), (6, 5, 11)]


def test_large_batches_are_exchanged_one_by_one():
    pytest.importorskip("jax")
    assert equal_batches._most(SHAPES, 8) == 16
    assert equal_batches._most((((224, 224, 3), "float32"),), 64) == 1


def test_class_weights_multiply_the_weights_of_rows():
    x, weights = np.zeros((4, 1)), np.array([1, 0.5, 1, -0.0], np.float32)
    assert weighted((x, np.array([0, 1, 2, 1])), {0: 2.0, 1: 3.0})[2].tolist() == [2, 3, 1, 3]
    of_rows = weighted((x, np.array([0, 1, 2, 1]), weights), {0: 2.0, 1: 3.0})[2]
    assert (of_rows.tolist(), np.signbit(of_rows[3])) == ([2, 1.5, 1, 0], True)
    assert weighted((x, np.eye(4)), {2: 5.0})[2].tolist() == [1, 1, 5, 1]
    with pytest.raises(SpecError, match="one output"):
        weighted((x, {"a": np.zeros(4), "b": np.zeros(4)}), {0: 2.0})


def test_batches_of_several_steps_are_stacked():
    pairs = [(np.full((2, 3), n), np.full(2, n)) for n in range(5)]
    found = list(stacked(iter(pairs), 2))
    assert [each[0].shape for each in found] == [(2, 2, 3), (2, 2, 3), (1, 2, 3)]
    assert found[1][1].tolist() == [[2, 2], [3, 3]]
    short = [(Short(x, np.array([True, False]), 3), y) for x, y in pairs[:1]]
    assert [each[0].shape for each in stacked(iter([*pairs[:3], *short]), 2)] == [(2, 2, 3), (1, 2, 3), (1, 2, 3)]
    adapter = BatchAdapter(SimpleNamespace(get_jax_iterator=lambda: iter(pairs), batch_size=2), None, None, False)
    assert (len(list(adapter.get_jax_iterator())), len(list(adapter.get_jax_iterator(super_batch=5)))) == (5, 1)
    assert (adapter.batch_size, adapter.pass_length) == (2, None)


class Variable:
    """A variable that is divided, or was: what `JaxState` reads of one."""

    path = "kernel"

    def __init__(self, values):
        self.value, self.shape = values, values.shape


def test_a_variable_is_put_together_from_the_parts_that_its_place_overlaps():
    values = np.arange(24, dtype=np.float32).reshape(6, 4)
    places = {"a": (slice(0, 3), slice(0, 4)), "b": (slice(3, 6), slice(0, 2)), "c": (slice(3, 6), slice(2, 4))}
    read = []

    def contents(name):
        read.append(name)
        return values[places[name]].tobytes()

    own = training_state._part(Variable(values), places, contents, (slice(2, 5), slice(0, 2)))
    np.testing.assert_array_equal(own, values[2:5, 0:2])
    assert read == ["a", "b"]
    np.testing.assert_array_equal(training_state._part(Variable(values), places, contents, (slice(None),) * 2), values)
    with pytest.raises(CheckpointError, match=r"12 numbers of kernel, whose shape is \(6, 4\)"):
        training_state._check_whole(Variable(values), [places["a"]])


def test_a_jax_program_is_refused_where_lost_nodes_are_started_again_alone():
    with pytest.raises(SpecError, match="Leave out scope, or have the workers train alone by .*TFOS_JAX_ALONE"):
        JaxCluster(["a:1", "b:1"], 0, replaced=True).start(None)


def test_two_workers_on_one_gpu_are_refused_by_name():
    shared = jax_processes.shared_gpu([("worker:0", "h1", ("0",)), ("worker:1", "h1", ("0",))])
    with pytest.raises(SpecError, match="worker:0 and worker:1 on h1 share the GPU 0, and NCCL"):
        JaxCluster(["a:1", "b:1"], 0, shared_gpu=shared).start(None)


class Torch:
    def fit(self, x=None, callbacks=None):
        return "fitted"


def keras_on_torch(version):
    """Return a model of a Keras that computes with torch."""
    keras = ModuleType("keras")
    keras.__version__ = version
    keras.config = SimpleNamespace(backend=lambda: "torch")
    keras.Model = type("Model", (Torch,), {"fit": Torch.fit})
    exchanging_callbacks.refuse_torch(keras)
    return keras.Model()


@pytest.fixture
def torch():
    return keras_on_torch("3.15.1")


def test_a_keras_that_can_train_with_torch_on_several_workers_is_tried_by_a_setting(monkeypatch):
    model = keras_on_torch("3.16.0.dev2026102704")
    assert model.fit() == "fitted"
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1", "b:2"]}}')
    with pytest.raises(
        SpecError, match=r'is not tested on several workers, and there are 2: .*"TFOS_KERAS_TORCH": "1"'
    ):
        model.fit()
    monkeypatch.setenv("TFOS_KERAS_TORCH", "1")
    distributed = SimpleNamespace(is_initialized=lambda: False, get_world_size=lambda: 2)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(distributed=distributed))
    with pytest.raises(SpecError, match=r"connects 1 of 2 workers, .* call keras\.distribution\.initialize on each"):
        model.fit()
    distributed.is_initialized = lambda: True
    assert model.fit() == "fitted"
    with pytest.raises(SpecError, match="exchanges no gradients between the 2 workers"):
        keras_on_torch("3.15.1").fit()


def test_torch_trains_on_one_worker_or_with_a_callback_that_exchanges_weights(torch, monkeypatch):
    class Own:
        exchanges_weights = True

    assert torch.fit() == "fitted"
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1", "b:2"], "ps": ["c:3"]}}')
    with pytest.raises(SpecError, match='between the 2 workers.*KERAS_BACKEND": "jax"'):
        torch.fit(callbacks=[object()])
    for callbacks in ([object(), Own()], Own(), SimpleNamespace(callbacks=[Own()])):
        assert torch.fit(callbacks=callbacks) == "fitted"

"""The computations by which preprocessing layers adapt in Spark's tasks."""

import importlib
import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorflowonspark.keras.preprocessing import Moments, TokenCounts, lookup_of, set_moments, set_tokens
from tensorflowonspark.ml.features import TakenColumns
from tensorflowonspark.ml.row_statistics import CountTokens, Splitter, _split_by_keras, find_moments
from tests.support.preprocessing import state_of

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(240)]
STRINGS = pa.list_(pa.string())


words = st.sampled_from(["", "a", "b", "B", "é", "e\u0301", "日", "a b", "[UNK]", "\U0001f600"])


@pytest.mark.deep
@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.lists(st.lists(words, max_size=3), max_size=4), min_size=1, max_size=3),
    st.sampled_from([None, 3, 5]),
    st.sampled_from([None, "a", ""]),
    st.sampled_from(["int", "multi_hot", "tf_idf"]),
)
def test_any_words_in_any_tasks(tasks, max_tokens, mask, mode):
    import keras
    import tensorflow as tf

    settings = {"max_tokens": max_tokens, "mask_token": mask, "output_mode": mode}
    own, whole = (keras.layers.StringLookup(**settings) for _ in range(2))
    taken = TakenColumns(("w",), {"shapes": {"w": (None,)}})
    parts = []
    for task in tasks:
        for batch in CountTokens(taken, False, mode == "tf_idf")(
            iter([pa.record_batch([pa.array(task, STRINGS)], ["w"])])
        ):
            found = batch.to_pylist()
            tokens = [row["token"] for row in found if row["token"] is not None]
            numbers = [np.array([row[name] for row in found if row["token"] is not None], int) for name in
                       ("count", "documents")]  # fmt: skip
            seen = sum(row["documents"] for row in found if row["token"] is None)
            parts.append(TokenCounts(np.array([*tokens, None], object)[:-1], *numbers, seen))
    rows = [row for task in tasks for row in task]
    assert sum(part.rows for part in parts) == len(rows)
    if not {each for row in rows for each in row} - {mask, "[UNK]"}:
        return  # Keras fails
    set_tokens(own, TokenCounts.merged(parts))
    whole.adapt(tf.data.Dataset.from_tensors(tf.ragged.constant(rows, ragged_rank=1, dtype=tf.string)))
    assert state_of(own)[0] == state_of(whole)[0]
    np.testing.assert_allclose(state_of(own)[1], state_of(whole)[1], rtol=1e-6)


CHARACTERS = "aBÉ éß日İ\t\n\x0b\x0c\r\x00\x1c\x85\u00a0\u2003!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.text(st.sampled_from(CHARACTERS)), max_size=4),
    st.sampled_from([None, "lower", "strip_punctuation", "lower_and_strip_punctuation"]),
    st.sampled_from([None, "whitespace"]),
)
def test_arrow_splits_any_text_as_keras_does(texts, standardize, split):
    import keras

    splitter = Splitter.of(keras.layers.TextVectorization(standardize=standardize, split=split))
    assert splitter.plain
    for values in (np.array([*texts, "a b"], object), np.array(["a"], object)):
        tokens, lengths = splitter.split(values)
        own, whole = _split_by_keras(splitter.layer, values)
        assert [each.encode() for each in tokens.to_pylist()] == list(own)
        assert list(lengths) == list(whole)


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)), max_size=5), min_size=1, max_size=4),
    st.sampled_from([-1, None]),
)
def test_any_numbers_in_any_tasks(tasks, axis):
    values = np.array([row for task in tasks for row in task])
    taken = TakenColumns(("a", "b"), {})
    parts = []
    for task in tasks:
        batch = pa.RecordBatch.from_pydict({name: [row[place] for row in task] for place, name in enumerate("ab")})
        batch = batch.cast(pa.schema({"a": pa.float64(), "b": pa.float64()}))
        found = find_moments(taken, () if axis is None else (axis,), iter([batch]))
        parts += [pickle.loads(each["moments"][0].as_py()) for each in found]
    assert bool(parts) == bool(len(values))
    if parts:
        moments = Moments.merged(parts)
        over = None if axis is None else 0
        np.testing.assert_allclose(moments.mean, values.mean(over), atol=1e-9)
        np.testing.assert_allclose(moments.variance, values.var(over), atol=1e-6)


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_a_layer_of_float64_keeps_what_float32_would_round(library):
    layers = pytest.importorskip(library).layers
    for dtype, mean in (("float64", 2**24 + 1), ("float32", 2**24)):
        layer = layers.Normalization(dtype=dtype)
        set_moments(layer, Moments.of(np.array([[2**24], [2**24 + 2]]), (1,)))
        assert np.asarray(layer.adapt_mean).tolist() == [mean]


def _with_a_lookup_before(library):
    class Labelled(library.layers.TextVectorization):
        def __init__(self, **settings):
            self.labels = library.layers.StringLookup()
            super().__init__(**settings)
            self.others = [library.layers.IntegerLookup()]

    return Labelled()


def _with_a_lookup_replaced(library):
    class Replaced(library.layers.TextVectorization):
        def __init__(self, **settings):
            super().__init__(**settings)
            self._lookup_layer = library.layers.StringLookup(mask_token="", oov_token="<unk>")

    return Replaced()


def _that_updates_in_parts(library):
    import tensorflow as tf

    class InParts(library.layers.TextVectorization):
        def update_state(self, data):
            for part in tf.split(data, 3):
                super().update_state(part)

    return InParts()


def _of_another_size(library):
    class Larger(library.layers.TextVectorization):
        def __init__(self):
            super().__init__()
            self.other = library.layers.StringLookup()

        def vocabulary_size(self):
            return len(self.get_vocabulary()) + 1

    return Larger()


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
@pytest.mark.parametrize(
    "make", [_with_a_lookup_before, _with_a_lookup_replaced, _that_updates_in_parts, _of_another_size]
)
def test_subclasses_of_text_vectorization_count_their_own_tokens(library, make):
    import tensorflow as tf

    layer = make(importlib.import_module(library))
    assert lookup_of(layer) is layer._lookup_layer
    assert "vocabulary_size" not in vars(layer._lookup_layer)
    tokens, lengths = _split_by_keras(layer, np.array([["a b"], [""], ["b"]], object))
    assert tokens.tolist() == [b"a", b"b", b"b"]
    assert lengths.tolist() == [2, 0, 1]
    unique, counts = np.unique(tokens, return_counts=True)
    set_tokens(layer, TokenCounts(unique, counts, counts, 3))
    assert layer.get_vocabulary()[2:] == ["b", "a"]
    assert layer(tf.constant(["a"])).numpy().tolist() == [[3]]


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_a_class_of_the_users_has_its_own_settings_in_a_task_and_may_update_row_by_row(library):
    import tensorflow as tf

    library = importlib.import_module(library)

    class Own(library.layers.TextVectorization):
        def __init__(self, word="x", **settings):
            super().__init__(**settings)
            self.word = word

        def get_config(self):
            return {**super().get_config(), "word": self.word}

        def update_state(self, data):
            for row in data:
                if row != self.word:
                    super().update_state(row)

    layer = Own("b", standardize=None, split=None, output_mode="tf_idf")
    splitter = pickle.loads(pickle.dumps(Splitter.of(layer)))
    rows = np.array([["a"], ["b"], ["c"]], object)
    tokens, lengths = splitter.split(rows)
    assert tokens.tolist() == [b"a", b"c"]
    assert lengths.tolist() == [1, 1]
    tokens, lengths = splitter.split(np.array([["b"]], object))
    assert tokens.tolist() == lengths.tolist() == []
    layer.adapt(tf.constant(rows.tolist()))
    assert sorted(layer.get_vocabulary()[1:]) == ["a", "c"]

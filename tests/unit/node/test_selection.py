"""Which columns a program takes, in what structure; and what it is told when they can't be had like that."""

import numpy as np
import pyarrow as pa
import pytest

from tensorflowonspark.columns import flat_columns, summarize, to_array
from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.feed_messages import SplitManifest
from tensorflowonspark.node.feed.selection import WEIGHT, DatasetOptions, FeatureOptions, Selection


def contents_of(columns, partition=0):
    batch = flat_columns(pa.record_batch(columns))
    summary = summarize(batch, partition)
    return SplitManifest({}, columns=summary, schema=batch.schema.serialize().to_pybytes()), batch


def select(columns, *, inference=False, **options):
    return Selection(contents_of(columns)[0], FeatureOptions(**options), inference=inference)


def arranged(columns, **options):
    """The structure of an element, with a column's name where its values would be."""
    selection = select(columns, **options)
    return selection.arrange({name: name for name in selection.kinds}, "weights")


IMAGES = {"image": [[1.0, 2.0]], "label": [1], "id": [7]}
STRUCT = {"s": pa.array([{"a": 1, "b": {"c": 2.0}}]), "label": [0], "w": [1.0]}


# ---- structure


@pytest.mark.parametrize(
    ("columns", "options", "element"),
    [
        (IMAGES, {}, ({"image": "image", "id": "id"}, "label", "weights")),
        (IMAGES, {"features": "image"}, {"image": "image", WEIGHT: "weights"}),
        (IMAGES, {"label": "id"}, ({"image": "image", "label": "label"}, "id", "weights")),
        (IMAGES, {"features": "image", "label": "id"}, ("image", "id", "weights")),
        (IMAGES, {"features": ["image"], "label": ["id"]}, ({"image": "image"}, {"id": "id"}, "weights")),
        (IMAGES, {"sample_weight": "id"}, ({"image": "image"}, "label", "weights")),
        ({"features": [1], "label": [2], "other": [3]}, {}, ("features", "label", "weights")),
        ({"features": [1], "y": [2]}, {}, {"features": "features", "y": "y", WEIGHT: "weights"}),
        ({"x": [1]}, {}, {"x": "x", WEIGHT: "weights"}),
        (STRUCT, {"features": "s"}, {"s.a": "s.a", "s.b.c": "s.b.c", WEIGHT: "weights"}),
        (STRUCT, {"features": "s.b", "label": "label"}, ({"s.b.c": "s.b.c"}, "label", "weights")),
        (STRUCT, {"features": ["w", "s"], "label": "label"},
         ({"w": "w", "s.a": "s.a", "s.b.c": "s.b.c"}, "label", "weights")),
        (STRUCT, {"features": "w", "label": "s"}, ("w", {"s.a": "s.a", "s.b.c": "s.b.c"}, "weights")),
        ({"x": [1], WEIGHT: [2.0]}, {"sample_weight": WEIGHT}, {"x": "x", WEIGHT: "weights"}),
        ({"x": [1], WEIGHT: [2.0]}, {"sample_weight": WEIGHT, "features": ["x", WEIGHT]},
         {"x": "x", WEIGHT: "weights"}),
    ],
)  # fmt: skip
def test_elements_have_the_structure_that_is_asked_for(columns, options, element):
    assert arranged(columns, **options) == element


def test_inference_takes_features_alone():
    assert select({"x": [1]}, inference=True).features == "x"
    assert select(IMAGES, inference=True).features == ["image", "label", "id"]
    assert select(IMAGES, inference=True, features="image").features == "image"
    assert select({"x": [1], WEIGHT: [2.0]}, inference=True).features == ["x", WEIGHT]
    assert select(IMAGES, inference=True).pick_features({"image": 1, "label": 2, "id": 3}) == {
        "image": 1,
        "label": 2,
        "id": 3,
    }


def test_a_column_that_is_not_taken_may_hold_anything():
    columns = {"x": [1, 2], "bad": [[1], None]}
    assert list(select(columns, features="x").kinds) == ["x"]
    with pytest.raises(FeedError, match="column 'bad' holds 1 null"):
        select(columns)


def test_kinds_are_those_that_are_declared():
    kinds = select(
        {"image": [b"abcd", None], "tags": [[1], [2, 3]]},
        shapes={"image": (2, 2), "tags": [None]},
        dtypes={"image": "float32"},
        fill={"image": 0},
    ).kinds
    assert (kinds["image"].shape, kinds["image"].dtype, kinds["image"].fill) == ((2, 2), np.float32, 0)
    assert kinds["tags"].ragged


# ---- weights


@pytest.mark.parametrize(
    ("columns", "options", "weights"),
    [
        ({"x": [1, 2, 3]}, {}, [1, 1, -0.0]),
        ({"x": [1, 2, 3], "w": [2.0, 0.5, 7.0]}, {"sample_weight": "w"}, [2, 0.5, -0.0]),
        ({"x": [1, 2, 3], "w": [True, False, True]}, {"sample_weight": "w"}, [1, 0, -0.0]),
        ({"x": [1, 2, 3], "w": [[2.0], [0.5], [7.0]]}, {"sample_weight": "w"}, [2, 0.5, -0.0]),
        (
            {"x": [1, 2, 3], "w": [[2.0, 1.0], [-0.0, 0.5], [7.0, 7.0]]},  # a number for each time step
            {"sample_weight": "w"},
            [[2, 1], [0, 0.5], [-0.0, -0.0]],
        ),
        (
            {"x": [1, 2, 3], "w": [2**24 + 1, 0.1, 7.0]},
            {"sample_weight": "w", "dtypes": {"w": "float64"}},
            [2**24 + 1, 0.1, -0.0],
        ),
        (
            {"x": [1, 2, 3], "w": [[2, 1], [0, 3], [7, 7]]},  # for each pixel
            {"sample_weight": "w", "shapes": {"w": (1, 2)}},
            [[[2, 1]], [[0, 3]], [[-0.0, -0.0]]],
        ),
    ],
)
def test_rows_that_fill_up_weigh_a_negative_zero(columns, options, weights):
    contents, batch = contents_of(columns)
    selection = Selection(contents, FeatureOptions(**options))
    values = {name: to_array(batch.column(name), kind) for name, kind in selection.kinds.items()}
    found = selection.weights((values, np.array([True, True, False])))
    assert found.dtype == selection.weight_dtype == options.get("dtypes", {}).get("w", "float32")
    assert found.tolist() == weights
    assert found.shape[1:] == selection.weight_shape
    assert np.signbit(found).tolist() == np.signbit(weights).tolist()


# ---- what can't be had


@pytest.mark.parametrize(
    ("columns", "options", "told"),
    [
        (IMAGES, {"features": "imgae"}, r"no column 'imgae' \(did you mean 'image'\?\): the rows have \['image', "),
        (IMAGES, {"label": "labels"}, "no column 'labels'"),
        (IMAGES, {"sample_weight": "w"}, "no column 'w'"),
        (IMAGES, {"features": ["image", "x"]}, "no column 'x'"),
        (STRUCT, {"features": "s.x"}, "no column 's.x'"),
        (IMAGES, {"features": "image", "shapes": {"id": (1,)}}, r"shapes names column 'id', but .* \['image'\]"),
        (STRUCT, {"dtypes": {"s": "float32"}}, "dtypes names column 's'"),
        (IMAGES, {"fill": {"x": 0}}, "fill names column 'x'"),
        (IMAGES, {"shapes": (2, 2)}, r"shapes=\(2, 2\): expected a dict by column"),
        (IMAGES, {"dtypes": "float32"}, "dtypes='float32': expected a dict by column"),
        ({"label": [1]}, {}, r"no column is left for the features: .* \['label'\]"),
        (IMAGES, {"features": []}, "no column is left for the features"),
        ({"x": [1], "w": [["a"]]}, {"sample_weight": "w"}, "sample_weight='w': expected a column of numbers"),
        ({"x": [1], "w": ["a"]}, {"sample_weight": "w"}, "sample_weight='w': expected a column of numbers"),
        (
            {"x": [1], "w": [[1]]},
            {"sample_weight": "w", "shapes": {"w": (None,)}},
            "sample_weight='w': expected a column of numbers: .* an array of one length",
        ),
        ({"x": [1], WEIGHT: [2.0]}, {}, "column 'sample_weight' would take the place of the rows' weights"),
        (IMAGES, {"dtypes": {"image": "flaot"}}, r"dtypes=\{'image': 'flaot'\}"),
    ],
)
def test_what_can_not_be_had_is_reported(columns, options, told):
    with pytest.raises(FeedError, match=told):
        select(columns, **options)


# ---- streams


def test_further_rows_of_a_stream_must_have_the_same_kinds():
    selection = select({"x": [[1, 2]], "y": [1]})
    selection.check(contents_of({"x": [[3, 4], [5, 6]], "y": [2, 3]}, 1)[0])
    with pytest.raises(
        FeedError, match=r"column 'x' .*1 to 2 .* row 1 of partition 2: \[9\], and row 0 of partition 0"
    ):
        selection.check(contents_of({"x": [[7, 8], [9]], "y": [2, 3]}, 2)[0])
    with pytest.raises(FeedError, match="column 'y' holds 1 null, the first in row 0 of partition 3: df.where"):
        select({"y": [1]}).check(contents_of({"y": pa.array([None], pa.int64())}, 3)[0])


def test_a_stream_may_bring_what_was_declared():
    selection = select(
        {"x": [[1, 2]], "y": [1]}, shapes={"x": (None,)}, fill={"y": float("nan")}, dtypes={"y": "float32"}
    )
    selection.check(contents_of({"x": [[7, 8], [9]], "y": pa.array([None, 3])}, 2)[0])
    assert selection.kinds["x"].shape == (None,)


@pytest.mark.parametrize(("shuffle", "seed"), [(True, 3), (False, None), (1, 3), (0, None), (np.True_, 3)])
def test_whether_rows_are_shuffled(shuffle, seed):
    assert DatasetOptions(shuffle=shuffle, seed=3).order_seed == seed


def test_a_shuffle_between_workers_is_no_option_of_a_dataset():
    with pytest.raises(SpecError, match="shuffle='global': expected True or False"):
        _ = DatasetOptions(shuffle="global").order_seed

"""Trees of files, with those of them that Spark's own sources read and their partition columns."""

# By name: the files ("0:" before an empty one), and those that are read, or the error. Where Spark leaves out a file
# with rows without a word, beside partitions, it is an error here (`STRICTER`).
TREES = {
    "plain": (["a", "sub/b"], {"a": {}}),
    "hidden names": (
        ["a", "_b", ".c", "_d=1", ".e=1", "_metadata", "_common_metadata", "x._COPYING_", "_SUCCESS"],
        {"a": {}, "_d=1": {}},
    ),
    "a column that begins with an underscore": (
        ["_k=1/a", "_k=2/b", "_temporary/0/c"],
        {"_k=1/a": {"_k": "1"}, "_k=2/b": {"_k": "2"}},
    ),
    "a column that begins with a dot": ([".k=1/a", "c"], {"c": {}}),
    "a directory that is being copied": (["day=1._COPYING_/a", "day=2/b"], {"day=2/b": {"day": "2"}}),
    "hidden directories within": (["k=1/_t/x=1/b", "k=1/_t=2/a"], {"k=1/_t=2/a": {"k": "1", "_t": "2"}}),
    "markers": (["day=1/a", "0:day=0_$folder$", "0:z"], {"day=1/a": {"day": "1"}}),
    "an empty partition": (["day=1/a", "0:day=x/b"], {"day=1/a": {"day": "1"}}),
    "a directory within a partition": (
        ["day=1/a", "day=1/sub/b", "day=2/c"],
        {"day=1/a": {"day": "1"}, "day=1/sub/b": {"day": "1"}, "day=2/c": {"day": "2"}},
    ),
    "partitions within a directory": (
        ["x/day=1/a", "x/day=2/b"],
        {"x/day=1/a": {"day": "1"}, "x/day=2/b": {"day": "2"}},
    ),
    "names in two cases": (["Day=1/a", "day=2/b"], {"Day=1/a": {"Day": "1"}, "day=2/b": {"Day": "2"}}),
    "a value with an equals sign": (["k==1/a"], {"k==1/a": {"k": "=1"}}),
    "a directory beside partitions": (["day=1/a", "sub/b"], "sub/b is not in a directory of a partition, as .*day=1/a"),
    "a file beside partitions": (["day=1/a", "b"], "b is not in a directory of a partition, as .*day=1/a"),
    "partitions in two directories": (
        ["x/day=1/a", "y/day=2/b"],
        "there are partitions in .*/x and in .*/y: read each",
    ),
    "one column twice": (["k=1/K=2/a"], "two of its directories name the same column"),
    "no name": (["=1/a"], "the directory '=1' has no name or no value"),
    "no value": (["k=/a"], "the directory 'k=' has no name or no value"),
}
STRICTER = {"a file beside partitions"}


def grow(root, paths):
    """Create the files of a tree."""
    for path in paths:
        file = root / path.removeprefix("0:")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("" if path.startswith("0:") else "row")

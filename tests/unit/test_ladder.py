"""How tests are divided among processes."""

import doctest
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from tests.support import ladder

CHUNKS = st.tuples(st.sampled_from(["", "local", "standalone"]), st.text("ab", max_size=2))


def test_its_example():
    assert not doctest.testmod(ladder).failed


@given(st.dictionaries(CHUNKS, st.floats(0, 1000)), st.integers(1, 4))
def test_every_chunk_has_a_process_and_none_has_much_more_than_the_others(lengths, processes):
    found = ladder.divide(lengths, processes)
    assert found.keys() == lengths.keys()
    totals = [sum(lengths[chunk] for chunk, of in found.items() if of == each) for each in range(processes)]
    sessions = 3 * 25.0  # at most one of each master in a process
    assert max(totals) <= sum(totals) / processes + max(lengths.values(), default=0.0) + sessions


@given(st.sets(st.text("abc", min_size=1, max_size=3)))
def test_every_test_has_one_turn(names):
    turns = ladder.turns_of(names)
    assert sorted(name for turn in turns for name in turn) == sorted(names)
    assert max(map(len, turns)) - min(map(len, turns)) <= 1


def test_tests_of_a_file_that_build_on_each_other_stay_in_one_process():
    names = [f"tests/cluster/a/test_{file}.py::test_{test}" for file in "abcd" for test in ("one[local]", "all", "two")]
    groups = ladder.groups_of(names, 4)
    for file in "abcd":
        assert len({groups[name] for name in names if f"test_{file}.py" in name}) == 1
    assert len(set(groups.values())) == 4


def test_a_seed_draws_an_order_of_files_and_of_their_tests():
    items = [SimpleNamespace(path=file, name=name) for file in "abcdef" for name in range(6)]
    orders = [[(item.path, item.name) for item in ladder.shuffled(items, seed)] for seed in ("1", "1", "2")]
    assert orders[0] == orders[1] != orders[2]
    for order in orders:
        assert sorted(order) == [(item.path, item.name) for item in items]
        files = [file for file, _ in order][::6]
        assert sorted(files) == list("abcdef") != files
        assert [file for file, _ in order] == [file for file in files for _ in range(6)]

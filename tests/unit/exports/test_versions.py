"""Numbers of exported models: each is one training's, also if several export at once."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import pytest

from tensorflowonspark.errors import SpecError
from tensorflowonspark.exports.versions import numbered

pytestmark = pytest.mark.timeout(60)


def write(path, version):
    with numbered(path, version) as target:
        fsspec.filesystem("file").makedirs(target)
        Path(target, "model").touch()
    return int(Path(target).name)


def test_the_next_number_is_one_more_than_the_highest(tmp_path):
    assert [write(f"{tmp_path}/model/", version) for version in ("next", "next", 7, "next", 0, "next")] == [
        1,
        2,
        7,
        8,
        0,
        9,
    ]
    assert sorted(each.name for each in (tmp_path / "model").iterdir()) == ["0", "1", "2", "7", "8", "9"]


@pytest.mark.parametrize("version", ["last", -1, True, 1.5])
def test_what_is_no_version_is_refused(tmp_path, version):
    with pytest.raises(SpecError, match="expected 'next', or a number from 0 on"):
        write(str(tmp_path), version)
    assert not list(tmp_path.iterdir())


def test_a_version_that_exists_is_refused(tmp_path):
    write(str(tmp_path), 3)
    with pytest.raises(SpecError, match=r"/3 exists already, or another training writes it: version='next' takes"):
        write(str(tmp_path), 3)


def test_a_number_is_free_again_after_an_export_that_has_failed(tmp_path):
    with pytest.raises(RuntimeError), numbered(str(tmp_path), "next"):
        raise RuntimeError
    assert write(str(tmp_path), "next") == 1


def test_trainings_that_export_at_once_have_numbers_of_their_own(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(lambda _: write(str(tmp_path), "next"), range(24)))
    assert len({*numbers}) == 24
    assert all(each.name.isdigit() for each in tmp_path.iterdir())  # no file that takes a number is left

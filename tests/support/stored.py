"""What goes to a file system and comes back, whichever it is."""

from pathlib import Path

from tensorflowonspark import storage


def write_model(names):
    """Return what writes a directory with such files."""

    def write(local):
        for name in names:
            place = Path(local) / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(name * 1000)

    return write


def names_below(path, *, directories=False):
    files, within = storage.file_system(path)
    found = files.find(within, withdirs=directories)
    return sorted(each.removeprefix(f"{within}/") for each in found if each != within)


def check_directory(place, here):
    """Write a directory twice, read it and remove it."""
    storage.publish(place, write_model(["saved_model.pb", "variables/old", "variables/same"]))
    storage.publish(place, write_model(["saved_model.pb", "variables/new", "variables/same"]))
    assert names_below(place) == ["saved_model.pb", "variables/new", "variables/same"]
    assert storage.fetch(place, str(here / "model"))
    assert (here / "model/variables/new").read_text() == "variables/new" * 1000
    storage.remove(place)
    assert not storage.fetch(place, str(here / "nothing"))


def check_file(directory, here):
    """Write a file where a directory was, and another one in its place."""
    place = f"{directory}/model.keras"
    storage.publish(place, write_model(["saved_model.pb", "variables/one"]))
    storage.publish(place, write_model(["saved_model.pb"]))
    for text in ("one", "two"):
        storage.publish(place, lambda local, text=text: Path(local).write_text(text) and None)
        assert storage.fetch(place, str(here / "file"))
        assert (here / "file").read_text() == text
    assert names_below(directory) == ["model.keras"]
    storage.remove(place)
    assert not storage.fetch(place, str(here / "file"))

"""Scripts as programs: found, checked and read with the modules that they import, before anything starts."""

import os
import tokenize
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec, PathFinder
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any

from tensorflowonspark.errors import SpecError
from tensorflowonspark.node.script import Script

_MOST_BYTES = 64 << 20  # of all files together, which are in the memory of each node for a moment
_LEFT_OUT = {"__pycache__", ".git", ".venv", "node_modules"}  # of a working directory
_PACKAGE = 5  # the kind of a package's directory, in `modulefinder`


def read_script(
    path: str | os.PathLike[str],
    arguments: Sequence[str] | None = None,
    *,
    module: bool = False,
    working_dir: str | os.PathLike[str] | None = None,
    files: Iterable[str | os.PathLike[str]] = (),
) -> Script:
    """Return a script with the files that it needs.

    With `module`, the path is a module's name. With `working_dir`, in which the script is, each node gets a copy of it
    to work in. Without one, nodes get the script and the modules beside it that it imports, and work in this process's
    directory where it exists. The nodes find more `files` in their working directory, by their names. What is missing,
    no Python, too large or ambiguous is refused (`SpecError`).

    Examples
    --------
    >>> import tempfile
    >>> directory = tempfile.mkdtemp()
    >>> _ = Path(directory, "train.py").write_text("import settings, json")
    >>> _ = Path(directory, "settings.py").write_text("rate = 0.1")
    >>> script = read_script(Path(directory, "train.py"), ["--lr", "0.1"])
    >>> script.name, sorted(script.files)
    ('train.py', ['settings.py', 'train.py'])
    """
    given = _check_arguments(arguments)
    root = Path.cwd() if working_dir is None else Path(working_dir).resolve()
    if not root.is_dir():
        raise SpecError.of("working_dir", str(working_dir), ": there is no such directory")
    file = module_file(str(path), root) if module else _existing_file(Path(path), "script")
    if file is not None:
        _check_source(file)
    if working_dir is not None:
        found = list(_all_files(root))
    else:
        root = file.parent if file is not None and not module else root
        found = _own_modules(str(path) if module else file, root) if file is not None else []
    if file is not None and not file.is_relative_to(root):
        raise SpecError(f"{file} is not in working_dir={str(root)!r}: nodes get only what is in that directory")
    own = {str(each.relative_to(root)): each for each in found}
    extras = _by_name([_existing_file(Path(each), "file") for each in files], own)
    name = str(path) if module or file is None else str(file.relative_to(root))
    directory = "" if working_dir is not None else str(Path.cwd())
    contents = _read({**own, **extras})
    return Script(
        name,
        module,
        given,
        str(root),
        directory,
        {name: contents[name] for name in own},
        {name: contents[name] for name in extras},
        frozenset(name for name, source in {**own, **extras}.items() if os.access(source, os.X_OK)),
    )


def _check_arguments(arguments: Sequence[str] | None) -> tuple[str, ...]:
    if isinstance(arguments, (str, bytes)) or not isinstance(arguments, Sequence | None):
        raise SpecError(f"the script's arguments are {arguments!r}: expected a list, as in ['--lr', '0.1']")
    wrong = next((each for each in arguments or () if not isinstance(each, str)), None)
    if wrong is not None:
        raise SpecError(f"{wrong!r} is no string: a script's arguments are strings, as in ['--lr', '0.1']")
    return tuple(arguments or ())


def _existing_file(path: Path, what: str) -> Path:
    try:
        if path.is_dir():
            raise SpecError(f"{path} is a directory: name a {what} in it")
        exists = path.is_file()
    except OSError as error:
        raise SpecError(f"{path} can't be read: {error.strerror}") from error
    if not exists:
        near = sorted(each.name for each in path.absolute().parent.glob(f"*{path.suffix or '.py'}"))[:5]
        hint = f"; in that directory there are {', '.join(near)}" if near else ""
        raise SpecError(f"there is no {what} {path}{hint}")
    return path.resolve()  # of a link too, as Python finds the modules beside a script


def _by_name(files: Iterable[Path], own: Mapping[str, Path]) -> dict[str, Path]:
    """Return files by their names; refuse one that would take the place of another."""
    found: dict[str, Path] = {}
    folders = {name.partition("/")[0]: each.parent for name, each in own.items() if "/" in name}
    for file in files:
        other = found.get(file.name) or own.get(file.name) or folders.get(file.name)
        if other is not None and other != file:
            raise SpecError(f"files: {file} and {other} would both be {file.name} in the nodes' directory: rename one")
        if file.name not in own:
            found[file.name] = file
    return found


def module_file(name: str, root: Path) -> Path | None:
    """Return the file that ``python -m name`` runs in a directory; None if it is installed, and not in there."""
    found = _find(name, str(root))
    if found is not None and found.submodule_search_locations:
        found = _find(f"{name}.__main__", str(root))
        if found is None:
            raise SpecError(f"{name} is a package without a __main__.py: name a module in it")
    if found is not None and found.origin:
        return Path(found.origin)
    if PathFinder.find_spec(name.partition(".")[0]) is None:
        raise SpecError(f"there is no module {name}, neither in {root} nor among the installed ones")
    return None


def _find(name: str, directory: str) -> ModuleSpec | None:
    """Return where a module of a directory is, without an import of its packages."""
    places = [directory]
    for part in name.split("."):
        found = PathFinder.find_spec(part, places)  # without its parents: those are not imported
        if found is None:
            return None
        places = list(found.submodule_search_locations or ())
    return found


def _check_source(file: Path) -> None:
    """Raise `SpecError` if a file is no Python program."""
    try:
        with tokenize.open(file) as source, _without_warnings():
            compile(source.read(), str(file), "exec", dont_inherit=True)
    except SyntaxError as error:
        raise _no_python(error, file) from error
    except (UnicodeDecodeError, ValueError) as error:
        raise SpecError(f"{file} is no Python program: {error}") from error
    except OSError as error:
        raise SpecError(f"{file} can't be read: {error.strerror}") from error


def _no_python(error: SyntaxError, file: Path | None = None) -> SpecError:
    line = f", line {error.lineno}" if error.lineno else ""
    return SpecError(f"{file or error.filename}{line}: {type(error).__name__}: {error.msg}")


class _Finder(ModuleFinder):
    """Finds the modules that a program imports in one directory; directories without an ``__init__.py`` are packages.

    Without the `needed` modules the program can't run; it may do without others, which are found too if they can't be
    compiled.
    """

    def __init__(self, root: Path, needed: Collection[str]) -> None:
        super().__init__(path=[str(root)])
        self._needed = needed
        self.files: dict[Path, None] = {}

    def find_module(self, name: str, path: Any, parent: Any = None) -> Any:
        spec = PathFinder.find_spec(name, self.path if path is None else path)
        if spec is not None and spec.origin is None and spec.submodule_search_locations:
            return None, next(iter(spec.submodule_search_locations)), ("", "", _PACKAGE)
        try:
            return super().find_module(name, path, parent)
        except OSError as error:  # a file that can't be read
            raise ImportError(str(error), name=name) from error

    def load_package(self, fqname: str, pathname: str) -> Any:
        if Path(pathname, "__init__.py").is_file():
            return super().load_package(fqname, pathname)
        module: Any = self.add_module(fqname)
        module.__path__ = [pathname]
        return module

    def load_module(self, fqname: str, fp: Any, pathname: str, file_info: Any) -> Any:
        if pathname and file_info[2] != _PACKAGE:  # a built-in module has no path
            self.files[Path(pathname)] = None
        try:
            return super().load_module(fqname, fp, pathname, file_info)
        except SpecError:
            raise
        except RecursionError as error:
            raise SpecError(
                f"{pathname}: its imports are nested too deeply to follow: ship the whole directory (--working-dir, or "
                "working_dir=)"
            ) from error
        except (SyntaxError, ValueError, OSError) as error:
            if fqname in self._needed:
                if isinstance(error, SyntaxError):
                    error.filename = error.filename or pathname
                raise
            raise ImportError(str(error), name=fqname) from error


def _own_modules(program: str | Path, root: Path) -> list[Path]:
    """Return the files of a program that are in its directory: itself, and what it imports, directly or not."""
    if isinstance(program, Path):
        finder = _Finder(root, ["__main__"])
        with _without_warnings():
            finder.run_script(str(program))
    else:
        parts = program.split(".")
        parents = [".".join(parts[: number + 1]) for number in range(len(parts))]
        finder = _Finder(root, [*parents, f"{program}.__main__"])
        try:
            for name in (program, f"{program}.__main__"):
                with suppress(ImportError), _without_warnings():  # the second one, if it is no package
                    finder.import_hook(name)
        except SyntaxError as error:
            raise _no_python(error) from error
    return list(finder.files)


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Leave the warnings of compiling to the nodes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        yield


def _all_files(root: Path) -> Iterator[Path]:
    """Yield the regular files of a directory, and of those that it links to."""
    seen = set()
    for directory, folders, names in os.walk(root, followlinks=True):
        seen.add(os.path.realpath(directory))
        folders[:] = [
            each for each in folders if each not in _LEFT_OUT and os.path.realpath(Path(directory, each)) not in seen
        ]
        yield from (path for path in (Path(directory, name) for name in names) if path.is_file())


def _read(paths: Mapping[str, Path]) -> dict[str, bytes]:
    """Return the contents of files; refuse more than a node can take."""
    try:
        sizes = {path: path.stat().st_size for path in paths.values()}
        if sum(sizes.values()) > _MOST_BYTES:
            largest = max(sizes, key=lambda path: sizes[path])
            raise SpecError(
                f"the files to ship have {sum(sizes.values()) >> 20} MiB, more than {_MOST_BYTES >> 20} (the largest "
                f"is {largest}): put data where all nodes can read it, and ship packages as an environment"
            )
        return {name: path.read_bytes() for name, path in paths.items()}
    except OSError as error:
        raise SpecError(f"{error.filename} can't be read: {error.strerror}") from error

"""Programs that are a file or a module, run in a node as ``python`` runs them on one machine."""

import logging
import multiprocessing
import os
import platform
import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.machinery import BYTECODE_SUFFIXES, SOURCE_SUFFIXES, ModuleSpec
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from tensorflowonspark import processes
from tensorflowonspark.node.context import Context
from tensorflowonspark.storage.ownership import why_not_ours

_POOLS = {"concurrent.futures.thread": "_shutdown", "concurrent.futures.process": "_global_shutdown"}
_MODULES = {*SOURCE_SUFFIXES, *BYTECODE_SUFFIXES, ".so"}
_log = logging.getLogger(__name__)


def _own_host() -> str:
    return f"{platform.node()} {processes.place()}"


@dataclass(frozen=True)
class Script:
    """A program that is a file or a module, with its command line and the files that it needs."""

    name: str  # the path of the file, relative to `root`; or the module's name
    is_module: bool  # it is run as ``python -m name``
    arguments: tuple[str, ...]
    root: str  # directory of the driver's machine that holds it, and the modules that it imports
    directory: str  # to work in, on the driver's machine; empty if each node works in its own copy of the files
    files: Mapping[str, bytes] = field(repr=False)  # by their paths relative to `root`
    extras: Mapping[str, bytes] = field(default_factory=dict, repr=False)  # other files for the working directory
    executables: Collection[str] = field(default=(), repr=False)  # files that may be executed
    # the driver's machine, or container: its name, and the place of its processes
    host: str = field(default_factory=_own_host)

    def place(self, own_directory: Path) -> Path:
        """Change to the working directory; return the directory that holds the program.

        That is the driver's if this machine has it, with the same files in it, no other user can write there, and no
        module in it is another's: nodes on one machine, or with a shared file system. Otherwise the files are copied.
        """
        if self.directory and self._is_in_place():
            try:
                os.chdir(self.directory)
            except OSError:  # another user's
                pass
            else:
                return Path(self.root)
        own_directory.mkdir(parents=True, exist_ok=True)
        for name, contents in {**self.files, **self.extras}.items():
            path = own_directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(contents)
            if name in self.executables:
                path.chmod(0o755)
        os.chdir(own_directory)
        _log.info("the script works in %s, which is removed at its end: write results elsewhere", own_directory)
        return own_directory

    def _is_in_place(self) -> bool:
        if not self.files and self.host != _own_host():
            return False  # a directory of the same name is another one
        places = [(Path(self.root), self.files), (Path(self.directory), self.extras)]
        try:
            if any((root / name).read_bytes() != files[name] for root, files in places for name in files):
                return False
            paths = [root / name for root, files in places for name in (".", *files)]
            beside = (each for root in {root for root, _ in places} for each in _importable(root))
            problem = next(filter(None, map(why_not_ours, chain(paths, beside))), "")
        except OSError:
            return False
        if problem:
            _log.warning("the script works in a copy of its files: %s", problem)
        return not problem


def _importable(root: Path) -> Iterator[Path]:
    """Yield the modules and packages in a directory, with all that is in these."""
    for each in root.iterdir():
        if each.is_dir() and each.name.isidentifier():
            yield each
            if (each / "__init__.py").exists():
                yield from _importable(each)
        elif each.suffix in _MODULES:
            yield each


def run_script(script: Script, ctx: Context) -> None:
    """Run a script as the program of this node; return when it has ended, as Python would, with all its threads.

    Parameters
    ----------
    script : Script
        The script.
    ctx : Context
        The node's context, which the script finds by `tensorflowonspark.context`.
    """
    root = script.place(Path(ctx.scratch, "script"))
    ctx._report_server_join()
    earlier = set(threading.enumerate())
    try:
        if script.is_module:
            sys.path.insert(0, str(root))
            _run_module(script)
        else:
            path = root / script.name
            sys.path.insert(0, str(path.parent))
            sys.argv[:] = [str(path), *script.arguments]
            _run_as_main(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), str(path), None)
    except SystemExit as error:
        if error.code is not None and not isinstance(error.code, int):  # Python shows it, and ends with 1
            sys.stderr.write(f"{error.code}\n")
        if not isinstance(error.code, int | None) or (error.code or 0) & 0xFF:  # a failure is reported at once
            raise
    _join_threads(earlier)


def _run_module(script: Script) -> None:
    """Run a module, or the ``__main__`` of a package, as ``python -m`` does."""
    sys.argv[:] = ["-m", *script.arguments]  # what packages find while they are imported
    spec = find_spec(script.name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = find_spec(f"{script.name}.__main__")
    loader: Any = spec.loader if spec is not None else None
    code = loader.get_code(spec.name) if spec is not None and hasattr(loader, "get_code") else None
    if spec is None or code is None:
        raise ModuleNotFoundError(f"No module named {script.name}", name=script.name)
    sys.argv[0] = str(spec.origin)
    _run_as_main(code, str(spec.origin), spec)


def _run_as_main(code: CodeType, path: str, spec: ModuleSpec | None) -> None:
    """Execute code as the module ``__main__``, which stays: threads, pickles and exit functions use it later."""
    main: Any = ModuleType("__main__")
    main.__file__ = path
    main.__spec__ = spec
    main.__package__ = spec.parent if spec is not None else None
    sys.modules["__main__"] = main
    exec(code, vars(main))  # noqa: S102 - the user's own program


def _join_threads(earlier: Collection[threading.Thread]) -> None:
    """Wait for the threads and processes that Python would wait for at its end."""
    for end in reversed(getattr(threading, "_threading_atexits", [])):  # pools, whose threads end only after this
        end()
    for module, flag in _POOLS.items():  # what the node does next may use some
        if module in sys.modules:
            setattr(sys.modules[module], flag, False)
    while threads := [each for each in threading.enumerate() if not each.daemon and each not in earlier]:
        for thread in threads:
            thread.join()
    for process in multiprocessing.active_children():
        if not process.daemon:
            process.join()

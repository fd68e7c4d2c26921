"""The executors' Python environment: packed once, kept on a file system, and shipped by Spark's archives."""

import argparse
import hashlib
import json
import os
import re
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tensorflowonspark import storage
from tensorflowonspark.cli.env_checksum import check_archive, digest_of
from tensorflowonspark.cli.spark_settings import spark_settings
from tensorflowonspark.errors import SpecError, StorageError
from tensorflowonspark.storage.ownership import why_replaceable

_NAME = "environment"  # the directory beside the executors into which Spark unpacks the archive
_ARCHIVES = ("spark.archives", "spark.yarn.dist.archives")
_PYTHONS = ("spark.pyspark.python", "spark.executorEnv.PYSPARK_PYTHON", "spark.yarn.appMasterEnv.PYSPARK_PYTHON")
_ENDINGS = (".tar.gz", ".tgz")
_CACHE = ".tfos/environments"  # in the user's home on fs.defaultFS
_OF_VENV = re.compile(r"\s*(home|version|version_info|include-system-site-packages)\s*=\s*(.*?)\s*$", re.MULTILINE)
_PACKERS = {"venv_pack": "venv-pack2", "conda_pack": "conda-pack"}


def add_environment_options(group: Any) -> None:
    """Add the options of the executors' environment to a parser or a group of one."""
    group.add_argument(
        "--python-env",
        default="auto",
        metavar="auto|none|PATH|URL.tar.gz",
        help="the executors' Python on YARN and Kubernetes: that of this command, packed once (auto, the default); "
        "none; another venv or conda environment to pack; or a packed one",
    )
    group.add_argument(
        "--env-cache",
        metavar="URL",
        help=f"the directory for packed environments (on YARN by default {_CACHE} in the home in fs.defaultFS)",
    )


@dataclass(frozen=True)
class PythonEnvironment:
    """A Python environment for the executors.

    `url` is where its archive is, or will be. The source is the environment, or the archive on this machine, of which
    that is a copy that does not exist yet.
    """

    url: str
    source: Path | None = None

    def describe(self) -> str:
        """Return what publishing it does."""
        return f"{self._source()} would be packed into {self.url}" if self.source else f"{self.url} exists"

    def publish(self) -> None:
        """Write the archive, unless it exists; print a line first, because this may take minutes.

        An environment that can't be packed is refused (`SpecError`); an archive that can't be written is a
        `StorageError`.
        """
        source = self.source
        if source is None:
            return
        if problem := why_replaceable(self.url):
            raise SpecError(f"{self.url} would be the executors' Python: {problem}. Take another --env-cache URL")
        verb = "packing" if source.is_dir() else "copying"
        print(f"{verb} {self._source()} into {self.url}; later runs reuse it", file=sys.stderr, flush=True)
        try:
            storage.publish(self.url, lambda local: _pack(source, local), replace=False)
        except OSError as error:
            raise StorageError(
                f"{self.url} can't be written ({error}): name another directory with --env-cache URL, or ship no "
                "environment with --python-env none"
            ) from error
        check_archive(self.url)  # which may be another run's, if that was sooner

    def arguments(self, submit: Sequence[str]) -> list[str]:
        """Return the arguments of spark-submit that ship it.

        The archives of the other arguments are kept.
        """
        settings = spark_settings(submit)
        archives = [*(settings[name] for name in _ARCHIVES if settings.get(name)), f"{self.url}#{_NAME}"]
        python = f"./{_NAME}/bin/python"
        pairs = [f"{name}={python}" for name in (_PYTHONS[0], _PYTHONS[2])]
        return ["--archives", ",".join(archives), *(word for pair in pairs for word in ("--conf", pair))]

    def _source(self) -> str:
        source = self.source or Path()
        size = _bytes(source) / 1e6
        return f"{source} ({size / 1e3:.1f} GB)" if size >= 1e3 else f"{source} ({size:.0f} MB)"  # noqa: PLR2004


def find_environment(options: argparse.Namespace, submit: Sequence[str]) -> PythonEnvironment | None:
    """Return the environment that a command line asks for; nothing is packed yet.

    It returns None if the executors have their own Python. If ``auto`` can't ship one, a line on standard error has the
    reason.

    One that can't be shipped is refused (`SpecError`): it doesn't exist, it has another Python version or editable
    packages, there is no packer, or the master runs on machines that use their own Python. If the file system of the
    archive is not available, that is a `StorageError`.
    """
    given, settings = options.python_env, spark_settings(submit)
    master = settings.get("spark.master", "")
    ships = master.startswith(("yarn", "k8s://"))
    if given == "none" or (given == "auto" and (not ships or _has_python(settings))):
        return None
    if given == "auto":
        if master.startswith("k8s://") and not options.env_cache:
            return None  # the image has the environment
        try:
            return _to_pack(_running(), _cache(options.env_cache, master))
        except (SpecError, StorageError) as error:
            print(
                f"--python-env auto ships no environment: {error}; the executors start {sys.executable} "
                "(--python-env none: without this line)",
                file=sys.stderr,
            )
            return None
    if not ships:
        raise SpecError(
            f"--python-env {given} is for YARN and Kubernetes; on {master or 'this master'} the executors start the "
            "Python in --conf spark.pyspark.python=PATH/bin/python"
        )
    if taken := [name for name in _PYTHONS if settings.get(name)]:
        raise SpecError(f"--python-env {given} and {taken[0]}={settings[taken[0]]} both name the executors' Python")
    if "://" in given:
        return _existing(given)
    return _to_pack(Path(given).expanduser().absolute(), _cache(options.env_cache, master))


def _has_python(settings: Mapping[str, str]) -> bool:
    return bool(os.environ.get("PYSPARK_PYTHON")) or any(settings.get(name) for name in (*_PYTHONS, *_ARCHIVES))


def _running() -> Path:
    """Return the environment of this process."""
    if sys.prefix == sys.base_prefix and not _is_conda(Path(sys.prefix)):
        raise SpecError(f"{sys.executable} is in no virtual or conda environment")
    return Path(sys.prefix)


def _cache(given: str | None, master: str) -> str:
    if given:
        return storage.absolute_path(given.rstrip("/"), str(Path.cwd()))
    if master.startswith("k8s://"):
        raise SpecError(
            "on Kubernetes --env-cache URL is needed, a directory that the pods can read, as s3a://bucket/dir"
        )
    if storage.default_fs().startswith("file:"):
        raise SpecError("fs.defaultFS names no file system of the cluster: set HADOOP_CONF_DIR, or --env-cache URL")
    return storage.absolute_path(_CACHE, str(Path.cwd()))


def _existing(url: str) -> PythonEnvironment:
    if not url.endswith(_ENDINGS):
        raise SpecError(f"--python-env {url}: expected a packed environment, as URL.tar.gz")
    if not _exists(url):
        raise SpecError(f"--python-env {url} doesn't exist")
    return PythonEnvironment(url)


def _exists(url: str) -> bool:
    files, within = storage.file_system(url)
    try:
        return bool(files.exists(within))
    except (OSError, RuntimeError) as error:
        raise StorageError(f"{url}: {error}") from error


def _to_pack(source: Path, cache: str) -> PythonEnvironment:
    checksum = ""
    if source.is_file() and source.name.endswith(_ENDINGS):
        with source.open("rb") as file:
            checksum = digest_of(file)
        name = checksum[:16]
    else:
        _check(source)
        name = _digest(source)
    url = f"{cache}/{name}.tar.gz"
    if not _exists(url):
        return PythonEnvironment(url, source)
    check_archive(url, checksum)
    return PythonEnvironment(url)


# ---- what is in an environment


def _is_conda(prefix: Path) -> bool:
    return (prefix / "conda-meta").is_dir() and not (prefix / "pyvenv.cfg").exists()


def _libraries(prefix: Path) -> list[Path]:
    """Return the standard-library directories: one, but in conda also a link."""
    return [path for path in prefix.glob("lib/python3.*") if path.is_dir() and not path.is_symlink()]


def _check(prefix: Path) -> None:
    """Refuse what can't be packed, or would not run."""
    if not prefix.exists():
        raise SpecError(f"--python-env {prefix} doesn't exist")
    found = _libraries(prefix)
    if (
        not (prefix / "bin/python").exists()
        or not ((prefix / "pyvenv.cfg").is_file() or _is_conda(prefix))
        or not found
    ):
        raise SpecError(f"--python-env {prefix}: expected a virtual or conda environment, or a packed one (.tar.gz)")
    own = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    if found[0].name != own:
        raise SpecError(f"--python-env {prefix} has {found[0].name}, and the driver {own}: they must be the same")
    if editable := sorted(_editable(prefix, found[0] / "site-packages")):
        raise SpecError(
            f"{prefix} can't be packed: {', '.join(editable)} are outside of it (editable installs, or .pth files that "
            "name other directories): install them from a wheel, as `pip install .` does"
        )
    packer = _packer(prefix)
    if find_spec(packer) is None:
        raise SpecError(f"packing {prefix} needs {_PACKERS[packer]}: pip install 'tensorflowonspark[env]'")


def _packer(prefix: Path) -> str:
    return "conda_pack" if _is_conda(prefix) else "venv_pack"


def _editable(prefix: Path, site: Path) -> set[str]:
    """Return the distributions, and the .pth files of no known one, whose code is outside of the environment.

    The packers see only plain .pth files: newer editable installs are import hooks, and would be packed without code.
    """
    found = {}
    for each in distributions(path=[str(site)]):
        if json.loads(each.read_text("direct_url.json") or "{}").get("dir_info", {}).get("editable"):
            found[each.metadata["Name"]] = {file.name for file in each.files or ()}
    files = {name for names in found.values() for name in names}
    links = {path.stem for path in site.glob("*.egg-link")}
    stray = {path.name for path in site.glob("*.pth") if path.name not in files and _leads_out(path, prefix)}
    return {*found, *links, *(stray if not links else ())}


def _leads_out(path: Path, prefix: Path) -> bool:
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines()]
    named = [line for line in lines if line and not line.startswith(("#", "import ", "import\t"))]
    return any(not Path(os.path.normpath(path.parent / line)).is_relative_to(prefix) for line in named)


def _digest(prefix: Path) -> str:
    """Return a name for the contents: that of the distributions with their files, and of the interpreter."""
    library = _libraries(prefix)[0]
    config = prefix / "pyvenv.cfg"
    parts = [library.name, sysconfig.get_platform(), _packer(prefix)]
    parts += [f"{key}={value}" for key, value in _OF_VENV.findall(config.read_text())] if config.is_file() else []
    parts += sorted(path.name for path in prefix.glob("conda-meta/*.json"))  # with version and build
    parts += sorted(
        f"{each.metadata['Name']} {each.version}\n{each.read_text('RECORD') or ''}"
        for each in distributions(path=[str(library / "site-packages")])
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _bytes(path: Path) -> int:
    paths = [path] if path.is_file() else path.rglob("*")
    return sum(each.lstat().st_size for each in paths)


# ---- packing


def _pack(source: Path, local: str) -> None:
    """Write the archive of an environment to a local path."""
    if source.is_file():
        Path(local).symlink_to(source)
        return
    module = import_module(_packer(source))
    faster = {"n_threads": -1} if _is_conda(source) else {}
    try:
        with _temporary_files_in(Path(local).parent):
            module.pack(prefix=str(source), output=local, **faster)
    except Exception as error:  # the packers' own kinds, and what an unusual pyvenv.cfg or file gives
        raise SpecError(
            f"{source} can't be packed by {_PACKERS[module.__name__]} (--python-env none ships nothing): {error}"
        ) from error


@contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    """Have packers put their temporary file into a directory that is removed: a signal would leave it elsewhere."""
    before = tempfile.tempdir
    tempfile.tempdir = str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before

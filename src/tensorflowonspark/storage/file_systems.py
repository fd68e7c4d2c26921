"""File systems by URL: HDFS, object stores and fsspec's, with credentials from Hadoop's settings.

Without such settings the clients use their own defaults: the environment, their own files, and the machine's role.
"""

import glob
import os
import socket
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from tensorflowonspark.errors import StorageError
from tensorflowonspark.storage.hadoop import hadoop_user, settings

READS_AT_ONCE = 64  # of small files: a store answers after tens of milliseconds, however many others ask
_PORT = "8020"  # Hadoop's, for a name node without one
# Give up on an unreachable name node after seconds, as Hadoop does; hdfs-native's default takes three minutes.
_ONE_NAME_NODE = {"dfs.client.failover.max.attempts": "3"}


def hdfs(scheme: str, authority: str, settings: Mapping[str, str]) -> fsspec.AbstractFileSystem:
    """Return the adapter of an HDFS (``hdfs``), or of a view over several (``viewfs``), which has not connected yet.

    The authority is a name node's host and port, or the name of an HA name service or a mount table; by default that of
    ``fs.defaultFS``. Raises StorageError if hdfs-native isn't installed, no name node is configured, or the settings
    are invalid.
    """
    try:
        from hdfs_native.fsspec import HdfsFileSystem, ViewfsFileSystem
    except ImportError as error:
        raise StorageError(
            f"{scheme}://{authority} needs hdfs-native, which is not installed: pip install tensorflowonspark[hdfs]"
        ) from error
    default = settings.get("fs.defaultFS", "")
    if not authority and default.startswith(f"{scheme}://"):
        authority = default.removeprefix(f"{scheme}://").partition("/")[0]
    if not authority:
        raise StorageError(
            f"{scheme}:/// names no {scheme}, and fs.defaultFS is {default or 'not set'}: write the name node, as in "
            f"{scheme}://host:8020/path, or set spark.hadoop.fs.defaultFS"
        )
    if (
        "SPARK_USER" in os.environ
    ):  # hdfs-native reads only HADOOP_USER_NAME; without it, it acts as the executor's own user
        os.environ.setdefault("HADOOP_USER_NAME", hadoop_user())
    kind = HdfsFileSystem if scheme == "hdfs" else ViewfsFileSystem
    host, _, port = authority.partition(":")
    if scheme == "hdfs" and f"dfs.ha.namenodes.{host}" not in settings:
        port = port or _PORT
        settings = {**_ONE_NAME_NODE, **settings}
        host = _host_of_token(host, int(port))
    try:
        # fsspec's cache of adapters is per thread; `_connected` caches for the process.
        return kind(host, int(port) if port else None, skip_instance_cache=True, **settings)
    except Exception as error:
        raise StorageError(f"{scheme}://{authority}: {error}; see the dfs.* of Spark's Hadoop settings") from error


def _host_of_token(host: str, port: int) -> str:
    """Return a name node's host as its delegation token names it, if there is a token for its address.

    Hadoop issues tokens for addresses (``hadoop.security.token.service.use_ip``), and hdfs-native finds a token only by
    the host that it is given.
    """
    file = os.environ.get("HADOOP_TOKEN_FILE_LOCATION")
    with suppress(OSError):
        tokens = Path(file).read_bytes() if file else b""
        address = socket.gethostbyname(host) if tokens else ""
        if f"{address}:{port}".encode() in tokens:
            return address
    return host


_GCS_RETRY_TIME = timedelta(minutes=1)  # the default of Google's client is 15 minutes
_AWS_REGION = ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")


def is_object_store(files: fsspec.AbstractFileSystem) -> bool:
    """Return whether a file system is an object store, which has no rename."""
    from fsspec.implementations.arrow import ArrowFSWrapper

    return isinstance(files, ArrowFSWrapper)


def _wrapped(store: Any) -> fsspec.AbstractFileSystem:
    from fsspec.implementations.arrow import ArrowFSWrapper

    return ArrowFSWrapper(store, skip_instance_cache=True)  # the cache's key would be the store's address in memory


# ---- S3


def s3(_scheme: str, bucket: str, settings: Mapping[str, str]) -> fsspec.AbstractFileSystem:
    """Return the adapter of a bucket in S3 or a store with its protocol, by the settings of Hadoop's S3A."""
    import pyarrow as pa
    from pyarrow.fs import S3FileSystem

    options = s3_options(bucket, settings)
    # A client has as many connections as Arrow has threads for files, and at least 25.
    pa.set_io_thread_count(max(pa.io_thread_count(), READS_AT_ONCE))
    try:
        return _wrapped(S3FileSystem(**options))
    except TypeError as error:
        raise StorageError(f"s3a://{bucket}: this pyarrow is too old for these settings: {error}") from error


def s3_options(bucket: str, settings: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of ``pyarrow.fs.S3FileSystem``; ``fs.s3a.bucket.NAME.x`` takes precedence over ``fs.s3a.x``.

    Examples
    --------
    >>> s3_options("b", {"fs.s3a.endpoint": "http://127.0.0.1:9000", "fs.s3a.endpoint.region": "eu-west-1"})
    {'endpoint_override': '127.0.0.1:9000', 'scheme': 'http', 'region': 'eu-west-1'}
    """

    def of(name: str) -> str:
        return settings.get(f"fs.s3a.bucket.{bucket}.{name}") or settings.get(f"fs.s3a.{name}", "")

    options: dict[str, Any] = {}
    if of("access.key") and of("secret.key"):
        options |= {"access_key": of("access.key"), "secret_key": of("secret.key")}
        if of("session.token"):
            options["session_token"] = of("session.token")
    elif "Anonymous" in of("aws.credentials.provider"):
        options["anonymous"] = True
    if of("endpoint"):
        scheme, separator, host = of("endpoint").rpartition("://")
        plain = of("connection.ssl.enabled").lower() == "false"
        options["endpoint_override"] = host.rstrip("/")
        options["scheme"] = scheme if separator else "http" if plain else "https"
        if of("path.style.access").lower() == "false":
            options["force_virtual_addressing"] = True
    region = of("endpoint.region") or ("" if of("endpoint") else _region_of(bucket))
    return {**options, "region": region} if region else options


def _region_of(bucket: str) -> str:
    """Return the region of a bucket from AWS, or an empty string if the environment sets the region or endpoint."""
    from pyarrow.fs import resolve_s3_region

    if not any(name in os.environ for name in _AWS_REGION):
        with suppress(OSError):
            return str(resolve_s3_region(bucket))
    return ""


# ---- Google Cloud Storage


def gcs(_scheme: str, _bucket: str, settings: Mapping[str, str]) -> fsspec.AbstractFileSystem:
    """Return the adapter of Google Cloud Storage, by the settings of its connector for Hadoop."""
    from pyarrow.fs import GcsFileSystem

    keyfile = "auth.service.account.json.keyfile"
    key = settings.get(f"fs.gs.{keyfile}") or settings.get(f"google.cloud.{keyfile}")
    if key:  # a path, which Google's client reads only from the environment
        os.environ.setdefault("GOOGLE_APPLICATION_CREDENTIALS", key)
    options: dict[str, Any] = {"retry_time_limit": _GCS_RETRY_TIME}
    if settings.get("fs.gs.auth.type", "").upper() == "UNAUTHENTICATED":
        options["anonymous"] = True
    if "fs.gs.storage.root.url" in settings:
        scheme, _, host = settings["fs.gs.storage.root.url"].partition("://")
        options |= {"scheme": scheme, "endpoint_override": host.rstrip("/")}
    return _wrapped(GcsFileSystem(**options))


# ---- Azure


def abfs(scheme: str, authority: str, settings: Mapping[str, str]) -> fsspec.AbstractFileSystem:
    """Return the adapter of an Azure account, as in ``abfs://container@account.dfs.core.windows.net/path``.

    Raises StorageError if pyarrow has no Azure file system, or the URL names no account.
    """
    try:
        from pyarrow.fs import AzureFileSystem
    except ImportError as error:
        import pyarrow

        raise StorageError(
            f"{scheme}:// needs a pyarrow with Azure, which {pyarrow.__version__} does not have: pip install -U pyarrow"
        ) from error
    container, _, host = authority.partition("@")
    if not host:
        raise StorageError(
            f"{scheme}://{container} names no account: write {scheme}://container@account.dfs.core.windows.net/path"
        )
    key = settings.get(f"fs.azure.account.key.{host}")
    return _wrapped(AzureFileSystem(account_name=host.partition(".")[0], **({"account_key": key} if key else {})))


_Connect = Callable[[str, str, Mapping[str, str]], fsspec.AbstractFileSystem]
_ADAPTERS: dict[str, _Connect] = {
    **dict.fromkeys(("hdfs", "viewfs"), hdfs),
    **dict.fromkeys(("s3", "s3a", "s3n"), s3),
    **dict.fromkeys(("gs", "gcs"), gcs),
    **dict.fromkeys(("abfs", "abfss"), abfs),
}


def file_system(path: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """Return the adapter of a path's file system, and the path within it.

    Parameters
    ----------
    path : str
        A URL or a local path.

    Returns
    -------
    (fsspec.AbstractFileSystem, str)
        The adapter, shared by all callers of this process, and the path without scheme and authority; object stores
        keep the bucket or container as its first part.

    Raises
    ------
    StorageError
        If the scheme is unknown, a library is missing, the settings lack an address, or a chain of fsspec's
        (``simplecache::https://…``) names something that is no protocol. A local path is taken as it is, also with
        ``::`` in it.

    Examples
    --------
    >>> file_system("memory://folder/file")[1], file_system("/x/run::2")[1]
    ('/folder/file', '/x/run::2')
    """
    scheme, separator, rest = path.partition("://")
    is_chain = "::" in path and path.partition("::")[0] in fsspec.available_protocols()
    if scheme == "file" or not (separator or is_chain):
        local = Path(path.removeprefix("file://").removeprefix("file:")).expanduser()
        return fsspec.filesystem("file"), os.path.abspath(local)  # noqa: PTH100 - links stay
    if scheme not in _ADAPTERS:
        unknown = [each for each in path.split("::") if "://" not in each and each not in fsspec.available_protocols()]
        if unknown:
            raise StorageError(
                f"{path}: {unknown[0]!r} is no protocol of fsspec's, which takes '::' for a chain of them: rename the "
                "file or directory"
            )
        try:
            files, within = fsspec.core.url_to_fs(path)
        except (ImportError, ValueError) as error:
            raise StorageError(f"{path}: fsspec can't open this URL: {error}") from error
        return files, within
    authority, _, within = rest.partition("/")
    properties = frozenset(each for each in settings().items() if not each[0].startswith("spark."))
    files = _connected(scheme, authority, properties)
    if _ADAPTERS[scheme] is hdfs:
        return files, f"/{within}"
    return files, f"{authority.partition('@')[0]}/{within}"  # of Azure's "container@account" the container


def is_local(files: fsspec.AbstractFileSystem) -> bool:
    """Return whether a file system is that of the local machine.

    Parameters
    ----------
    files : fsspec.AbstractFileSystem
        An adapter, as `file_system` returns it.

    Returns
    -------
    bool
        True for local files only.

    Examples
    --------
    >>> is_local(file_system("/tmp")[0]), is_local(file_system("memory://folder")[0])
    (True, False)
    """
    return isinstance(files, LocalFileSystem)


def files_below(files: fsspec.AbstractFileSystem, root: str) -> dict[str, dict[str, Any]]:
    """Return the files below a directory, or the file itself, by path, with what the file system reports of each.

    That is as fsspec's ``find(detail=True)``: ``size``, ``type`` and ``mtime`` among others. On the local machine links
    are followed, as Spark and pyarrow do, where fsspec's own listing leaves out what is behind them; one that leads
    nowhere has the type ``"link"``, and StorageError is raised for one that leads back to a directory that it is in.
    """
    files.invalidate_cache()
    if not is_local(files):
        return files.find(root, detail=True)  # type: ignore[no-any-return]
    found = [root] if Path(root).is_file() else []
    above: dict[str, set[str]] = {root: {os.path.realpath(root)}}
    for folder, folders, names in os.walk(root, followlinks=True):
        found += [f"{folder.rstrip('/')}/{name}" for name in names]
        for name in folders:
            path = f"{folder.rstrip('/')}/{name}"
            real = os.path.realpath(path)
            if real in above[folder]:
                raise StorageError(f"{path} is a link that leads back to {real}, in which it is: remove it")
            above[path] = above[folder] | {real}
    return {path: _described(path) for path in sorted(found)}


def _described(path: str) -> dict[str, Any]:
    try:
        status = Path(path).stat()
    except FileNotFoundError:
        return {"name": path, "size": 0, "type": "link", "mtime": 0.0}
    kind = "file" if stat.S_ISREG(status.st_mode) else "other"
    return {"name": path, "size": status.st_size, "type": kind, "mtime": status.st_mtime}


def matching(files: fsspec.AbstractFileSystem, pattern: str) -> list[str]:
    """Return the files and directories that a wildcard matches (``*``, ``?``, ``[ab]``); local links are followed."""
    if is_local(files):
        return glob.glob(pattern, recursive=True)  # noqa: PTH207 - the pattern has the directory
    return [str(each) for each in files.glob(pattern)]


@lru_cache(maxsize=16)  # stores and name nodes of a program: more than it uses
def _connected(scheme: str, authority: str, properties: frozenset[tuple[str, str]]) -> fsspec.AbstractFileSystem:
    return _ADAPTERS[scheme](scheme, authority, dict(properties))

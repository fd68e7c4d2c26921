"""HDFS, by a client that speaks its protocol: no Java, no libhdfs and no CLASSPATH in the node."""

import os
from collections.abc import Mapping

import fsspec

from tensorflowonspark.errors import StorageError
from tensorflowonspark.storage.hadoop import hadoop_user

__all__ = ["hdfs"]

_PORT = "8020"  # Hadoop's, for a name node without one
# Some seconds for one that is down, as Hadoop has it; hdfs-native takes three minutes, as for a name service.
_ONE_NAME_NODE = {"dfs.client.failover.max.attempts": "3"}


def hdfs(scheme: str, authority: str, settings: Mapping[str, str]) -> fsspec.AbstractFileSystem:
    """Return the adapter of an HDFS, or of a view over several.

    Parameters
    ----------
    scheme : str
        ``hdfs`` or ``viewfs``.
    authority : str
        A name node's host and port, or the name of an HA name service or a mount table; if it is empty, that of
        ``fs.defaultFS``.
    settings : mapping
        Hadoop's settings.

    Raises
    ------
    StorageError
        If hdfs-native isn't installed, or there is no name node to ask.
    """
    try:
        from hdfs_native.fsspec import HdfsFileSystem, ViewfsFileSystem
    except ImportError as error:
        raise StorageError(
            f"{scheme}://{authority} needs hdfs-native, which this Python has not: pip install tensorflowonspark[hdfs]"
        ) from error
    default = settings.get("fs.defaultFS", "")
    if not authority and default.startswith(f"{scheme}://"):
        authority = default.removeprefix(f"{scheme}://").partition("/")[0]
    if not authority:
        raise StorageError(
            f"{scheme}:/// names no {scheme}, and fs.defaultFS is {default or 'not set'}: write the name node, as in "
            f"{scheme}://host:8020/path, or set spark.hadoop.fs.defaultFS"
        )
    if "SPARK_USER" in os.environ:  # hdfs-native knows this one only, and would else act as the executor's own user
        os.environ.setdefault("HADOOP_USER_NAME", hadoop_user())
    kind = HdfsFileSystem if scheme == "hdfs" else ViewfsFileSystem
    host, _, port = authority.partition(":")
    if scheme == "hdfs" and f"dfs.ha.namenodes.{host}" not in settings:
        port = port or _PORT
        settings = {**_ONE_NAME_NODE, **settings}
    try:
        # fsspec's own cache of adapters is by thread.
        return kind(host, int(port) if port else None, skip_instance_cache=True, **settings)
    except Exception as error:
        raise StorageError(f"{scheme}://{authority}: {error}; see the dfs.* of Spark's Hadoop settings") from error

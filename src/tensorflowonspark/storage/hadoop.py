"""Hadoop's settings for file systems, and paths without a scheme.

The driver takes them from Spark and gives them to every process of the cluster by the way that the token takes: they
may hold secrets.
"""

import getpass
import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["absolute_path", "default_fs", "hadoop_settings", "hadoop_user", "settings", "use", "use_session"]

_WANTED = ("fs.", "dfs.", "hadoop.security.", "hadoop.rpc.", "ipc.client.", "google.cloud.auth.")
_ALWAYS = "fs.defaultFS"  # even Hadoop's own default of it: an executor's HADOOP_CONF_DIR may say something else
_SPARK_PREFIX = "spark.hadoop."
_BLANK = "(redacted)"
_FILES = ("core-site.xml", "hdfs-site.xml")

_used: dict[str, str] = {}


def use(given: Mapping[str, str]) -> None:
    """Take these Hadoop settings for all file systems of this process; they go before those of HADOOP_CONF_DIR.

    Parameters
    ----------
    given : mapping
        Values by name, as ``{"fs.s3a.endpoint": "http://127.0.0.1:9000"}``. They replace those given before.
    """
    global _used  # noqa: PLW0603 - one for the process, as Hadoop's are one for a JVM
    _used = dict(given)


def settings() -> dict[str, str]:
    """Return the Hadoop settings of this process."""
    return {**_from_folder(os.environ.get("HADOOP_CONF_DIR", "")), **_used}


def hadoop_settings(spark: "SparkSession") -> dict[str, str]:
    """Return what a session's Hadoop settings say of file systems, without what is Hadoop's own default.

    Over Spark Connect these are what the session has set and the server's ``spark.hadoop.*``, but for secrets, which
    the server does not tell: give these with `use` before. What it has from its HADOOP_CONF_DIR isn't seen.

    Parameters
    ----------
    spark : SparkSession
        The application's. What was set at run time (``spark.conf.set("fs.s3a...", ...)``) counts too.
    """
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        return _of_connect(spark)
    # All of it in one answer of the JVM: asking for thousands of settings one by one takes seconds.
    found = spark._jsparkSession.sessionState().newHadoopConf()
    text = spark._jvm.java.io.StringWriter()
    found.writeXml(text)
    chosen = {}
    for name, value, source in _properties(text.toString()):
        if name.startswith(_WANTED) and (name == _ALWAYS or not source.endswith("-default.xml")):
            chosen[name] = str(found.get(name)) if "${" in value else value
    return chosen


def use_session(spark: "SparkSession | None" = None) -> None:
    """Take a Spark session's settings for this process, the driver's.

    Parameters
    ----------
    spark : SparkSession, optional
        By default the active one; without any, nothing is done.
    """
    from pyspark.sql import SparkSession

    session = spark or SparkSession.getActiveSession()
    if session is not None:
        use(hadoop_settings(session))


def _of_connect(spark: "SparkSession") -> dict[str, str]:
    rows = [row for row in spark.sql("SET").collect() if _BLANK not in row.value]
    named = {row.key.removeprefix(_SPARK_PREFIX): row.value for row in rows}
    return {**_used, **{name: value for name, value in named.items() if name.startswith(_WANTED)}}


def hadoop_user() -> str:
    """Return who Hadoop takes this process for: on a YARN without Kerberos, whoever submitted the application."""
    return os.environ.get("HADOOP_USER_NAME") or os.environ.get("SPARK_USER") or getpass.getuser()


@cache
def _from_folder(folder: str) -> dict[str, str]:
    files = [Path(folder, name) for name in _FILES] if folder else []
    texts = [path.read_text() for path in files if path.is_file()]
    return {name: value for text in texts for name, value, _ in _properties(text)}


def _properties(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield name, value and source of each property in a file of Hadoop's."""
    for entry in ElementTree.fromstring(text).iter("property"):  # noqa: S314 - the administrator's own file
        name, value = entry.findtext("name"), entry.findtext("value")
        if name and value is not None:
            yield name.strip(), value.strip(), entry.findtext("source", "")


_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.\-]+:(//|:)")  # with a second colon it is one of fsspec's chains
_WITH_HOMES = ("hdfs://", "viewfs://")


def default_fs() -> str:
    """Return the URL of the file system that Hadoop takes by default, without a slash at its end."""
    return _without_root(settings().get("fs.defaultFS", "")) or "file://"


def absolute_path(path: str, working_dir: str, default: str | None = None) -> str:
    """Return a path as a URL of the default file system, unless it has a scheme already.

    Parameters
    ----------
    path : str
        A URL, which stays as it is; an absolute path; or a relative one, which begins at the user's home on HDFS and
        at `working_dir` on this machine.
    working_dir : str
        Where relative paths of this machine begin.
    default : str, optional
        The default file system; that of the settings if none is given.

    Examples
    --------
    >>> absolute_path("/data/train", "/work", "hdfs://name:8020")
    'hdfs://name:8020/data/train'
    >>> absolute_path("model", "/work", "file://")
    'file:///work/model'
    """
    if _URL.match(path):
        return path
    root = default_fs() if default is None else default
    if path.startswith("/"):
        return f"{root}{path}"
    if root.startswith(_WITH_HOMES):
        return f"{root}/user/{hadoop_user()}/{path}"
    return f"{root}{working_dir}/{path}" if root.startswith("file:") else f"{root}/{path}"


def _without_root(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rstrip('/')}"

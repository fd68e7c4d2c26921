"""Hadoop's settings for file systems, and the resolution of paths without a scheme.

The driver reads the settings from Spark and sends them to every process of the cluster. They may hold secrets, so they
travel with the cluster's token.
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

TIME_ZONE = "spark.sql.session.timeZone"  # is sent with Hadoop's settings: names of directories have local times

_OF_SOURCES = (  # what Spark's own sources of files obey: `listing`, `tfrecords.options`
    "mapreduce.input.pathFilter.",
    "spark.sql.caseSensitive",
    "spark.sql.columnNameOfCorruptRecord",
    "spark.sql.files.",
    TIME_ZONE,
    "spark.sql.sources.partition",
)
_PREFIXES = ("fs.", "dfs.", "hadoop.security.", "hadoop.rpc.", "ipc.client.", "google.cloud.auth.", *_OF_SOURCES)
_ALWAYS = "fs.defaultFS"  # even if it is Hadoop's default: an executor's HADOOP_CONF_DIR may have another
_SPARK_PREFIX = "spark.hadoop."
_REDACTED = "(redacted)"
_FILES = ("core-site.xml", "hdfs-site.xml")

_used: dict[str, str] = {}


def use(given: Mapping[str, str]) -> None:
    """Set the Hadoop settings of this process's file systems.

    They take precedence over those of HADOOP_CONF_DIR.

    Parameters
    ----------
    given : mapping
        Values by name, such as ``{"fs.s3a.endpoint": "http://127.0.0.1:9000"}``. They replace those of earlier calls.

    Examples
    --------
    >>> use({"fs.s3a.endpoint": "http://127.0.0.1:9000"})
    >>> settings()["fs.s3a.endpoint"]
    'http://127.0.0.1:9000'
    >>> use({})
    """
    global _used  # noqa: PLW0603 - one for the process, as Hadoop's are one for a JVM
    _used = dict(given)


def settings() -> dict[str, str]:
    """Return the Hadoop settings of this process.

    Returns
    -------
    dict
        Values by name: those of HADOOP_CONF_DIR, overridden by those of `use`.

    Examples
    --------
    >>> use({"fs.defaultFS": "hdfs://name:8020"})
    >>> settings()["fs.defaultFS"]
    'hdfs://name:8020'
    >>> use({})
    """
    return {**_from_folder(os.environ.get("HADOOP_CONF_DIR", "")), **_used}


def hadoop_settings(spark: "SparkSession") -> dict[str, str]:
    """Return a session's settings for file systems and sources of files, without the defaults of Hadoop and Spark.

    Over Spark Connect these are the session's own settings and the server's ``spark.hadoop.*``, without the server's
    HADOOP_CONF_DIR. The server redacts secrets: set them with `use` first.

    Parameters
    ----------
    spark : SparkSession
        The session. Settings made at run time (``spark.conf.set("fs.s3a...", ...)``) are included.

    Returns
    -------
    dict
        Values by name.

    Examples
    --------
    >>> hadoop_settings(spark)["fs.defaultFS"]  # of a session on one machine
    'file:///'
    """
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        return _of_connect(spark)
    # One call of the JVM returns all: thousands of calls take seconds.
    found = spark._jsparkSession.sessionState().newHadoopConf()
    text = spark._jvm.java.io.StringWriter()
    found.writeXml(text)
    chosen = {TIME_ZONE: spark.conf.get(TIME_ZONE)}
    for name, value, source in _properties(text.toString()):
        if name.startswith(_PREFIXES) and (name == _ALWAYS or not source.endswith("-default.xml")):
            chosen[name] = str(found.get(name)) if "${" in value else value
    return chosen


def use_session(spark: "SparkSession | None" = None) -> None:
    """Set the Hadoop settings of this process, the driver, to those of a Spark session.

    Parameters
    ----------
    spark : SparkSession, optional
        The session; by default that of `active_session`. Without one nothing changes.
    """
    session = spark or active_session()
    if session is not None:
        use(hadoop_settings(session))


def active_session() -> "SparkSession | None":
    """Return this thread's Spark session, else this process's; None if it has none."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        return SparkSession.active()
    except PySparkRuntimeError:  # there is none
        return None


def _of_connect(spark: "SparkSession") -> dict[str, str]:
    rows = [row for row in spark.sql("SET").collect() if _REDACTED not in row.value]
    named = {row.key.removeprefix(_SPARK_PREFIX): row.value for row in rows}
    found = {name: value for name, value in named.items() if name.startswith(_PREFIXES)}
    return {**_used, TIME_ZONE: spark.conf.get(TIME_ZONE), **found}


def hadoop_user() -> str:
    """Return the user as which this process acts in Hadoop, without Kerberos.

    Returns
    -------
    str
        The value of ``HADOOP_USER_NAME``; else of ``SPARK_USER``, which on YARN is the application's submitter; else
        the user of this process.
    """
    return os.environ.get("HADOOP_USER_NAME") or os.environ.get("SPARK_USER") or getpass.getuser()


@cache
def _from_folder(folder: str) -> dict[str, str]:
    files = [Path(folder, name) for name in _FILES] if folder else []
    texts = [path.read_text() for path in files if path.is_file()]
    return {name: value for text in texts for name, value, _ in _properties(text)}


def _properties(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield the name, value and source of each property in a Hadoop configuration file."""
    for entry in ElementTree.fromstring(text).iter("property"):  # noqa: S314 - the administrator's own file
        name, value = entry.findtext("name"), entry.findtext("value")
        if name and value is not None:
            yield name.strip(), value.strip(), entry.findtext("source", "")


_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.\-]+:(//|:)")  # with a second colon it is an fsspec chain
_WITH_HOMES = ("hdfs://", "viewfs://")


def default_fs() -> str:
    """Return the URL of Hadoop's default file system, without a trailing slash.

    Returns
    -------
    str
        The value of ``fs.defaultFS``, or ``file://``.

    Examples
    --------
    >>> use({"fs.defaultFS": "hdfs://name:8020/"})
    >>> default_fs()
    'hdfs://name:8020'
    >>> use({})
    """
    return _without_root(settings().get("fs.defaultFS", "")) or "file://"


def absolute_path(path: str, working_dir: str, default: str | None = None) -> str:
    """Return a path as a URL of the default file system, unless it has a scheme already.

    Parameters
    ----------
    path : str
        A URL, which is returned unchanged; an absolute path; or a relative one, which is resolved against the user's
        home on HDFS and against `working_dir` on the local file system.
    working_dir : str
        The local directory against which relative paths are resolved.
    default : str, optional
        The URL of the default file system; by default that of the settings.

    Returns
    -------
    str
        A URL.

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

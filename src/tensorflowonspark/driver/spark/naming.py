"""Names of jobs and stages in Spark's UI: the program, the cluster, and what the job does."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_ID_CHARACTERS = 8  # of a cluster's identifier, which has 32
_DESCRIPTION = "spark.job.description"
_STAGE_NAME = "callSite.short"


def describe_job(program: str, cluster: str, what: str) -> str:
    """Return the description of a job.

    Examples
    --------
    >>> describe_job("train", "ab12cd34ef56", "feed 0 to 2 nodes")
    'train ab12cd34: feed 0 to 2 nodes'
    """
    return f"{program} {cluster[:_ID_CHARACTERS]}: {what}"


def job_group(description: str) -> str:
    """Return a new job group for a job with a description, which can be its tag, too.

    Examples
    --------
    >>> job_group("train ab12cd34: feed 0 to 2 nodes").rpartition("-")[0]
    'tensorflowonspark-train-ab12cd34'
    """
    name = re.sub("[ ,]", "-", description.partition(":")[0])  # a tag of a job has no comma
    return f"tensorflowonspark-{name}-{uuid4().hex[:_ID_CHARACTERS]}"


def name_stages(context: "SparkContext", rows: Any, description: str) -> Any:
    """Return a DataFrame or RDD whose stages have the name of what their job does, and not of a line of code.

    PySpark names a stage after the line that has called it, through the context that it finds in `rows`, which must
    therefore be collected by the thread that has called this function.
    """
    name = description.partition(": ")[2] or description
    context.setLocalProperty(_STAGE_NAME, name)  # for actions that name nothing
    if rows is not None:
        setattr(rows, "_sc" if hasattr(rows, "_sc") else "ctx", _NamingContext(context, name))
    return rows


class _NamingContext:
    """A SparkContext of Python that names stages, and of Java below it; all else is the original's."""

    def __init__(self, original: Any, name: str) -> None:
        self._original, self._name = original, name

    @property
    def _jsc(self) -> "_NamingContext":
        return _NamingContext(self._original._jsc, self._name)

    def setCallSite(self, _site: str | None) -> None:  # noqa: N802 - Spark's name
        self._original.setCallSite(self._name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


@contextmanager
def described(spark: "SparkSession", what: str) -> Iterator[None]:
    """Describe the jobs that this thread starts in the block, unless the user has described them; not on Connect."""
    context = getattr(spark, "sparkContext", None) if hasattr(type(spark), "sparkContext") else None
    if context is None or context.getLocalProperty(_DESCRIPTION) is not None:
        yield
        return
    context.setJobDescription(what)
    try:
        yield
    finally:
        with suppress(Exception):  # the application has ended
            context.setLocalProperty(_DESCRIPTION, None)

"""A session of Spark Connect that refuses what Databricks' access mode Standard refuses.

Over Spark Connect there is no SparkContext, no RDD and no JVM anyway. What is refused beside is on the pages "Standard
compute requirements and limitations" and "Databricks Runtime 19" of its documentation: some settings.
"""

import os
import re

import grpc
from pyspark.errors.exceptions.connect import AnalysisException
from pyspark.sql.connect.client import DefaultChannelBuilder
from pyspark.sql.connect.session import SparkSession

_SETTINGS = re.compile(
    r"spark\.(executorEnv\.|jars|files|kubernetes\.|hadoop\.|(driver|executor)\.(extraJavaOptions|resource\.)|task\.resource\.)"
)


def _check(request):
    operation = getattr(request, "operation", None)  # of a ConfigRequest
    if hasattr(operation, "WhichOneof") and operation.DESCRIPTOR.full_name == "spark.connect.ConfigRequest.Operation":
        chosen = getattr(operation, operation.WhichOneof("op_type"))
        for name in [*getattr(chosen, "keys", ()), *(pair.key for pair in getattr(chosen, "pairs", ()))]:
            if _SETTINGS.match(name):
                raise AnalysisException(
                    f"[CONFIG_NOT_AVAILABLE] Configuration {name} is not available. SQLSTATE: 42K0I"
                )


class _Refusing(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    def intercept_unary_unary(self, continuation, details, request):
        _check(request)
        return continuation(details, request)

    def intercept_unary_stream(self, continuation, details, request):
        _check(request)
        return continuation(details, request)


def standard_session(address):
    """Return a session with a server of Spark Connect, as one of that access mode."""
    builder = DefaultChannelBuilder(address)
    builder.add_interceptor(_Refusing())
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"  # as the builder of a remote session sets it
    return SparkSession.builder.channelBuilder(builder).getOrCreate()

"""Files and directories on any file system: the only folder that knows file systems.

A path is local or a URL: ``hdfs://`` and ``viewfs://``, ``s3://`` (also ``s3a`` and ``s3n``), ``gs://``, ``abfs://``
(also ``abfss``), or any other scheme with an fsspec adapter. Credentials and addresses come from the Hadoop settings of
the Spark application, or else from the defaults of each client library. Importing this package loads none of these
libraries, and neither Spark nor TensorFlow.
"""

from tensorflowonspark.storage.file_systems import file_system, is_local
from tensorflowonspark.storage.hadoop import (
    absolute_path,
    default_fs,
    hadoop_settings,
    hadoop_user,
    settings,
    use,
    use_session,
)
from tensorflowonspark.storage.random_writes import takes_random_writes
from tensorflowonspark.storage.transfer import (
    DirectorySync,
    check_member,
    fetch,
    make_private_directory,
    publish,
    remove,
)

__all__ = [
    "DirectorySync",
    "absolute_path",
    "check_member",
    "default_fs",
    "fetch",
    "file_system",
    "hadoop_settings",
    "hadoop_user",
    "is_local",
    "make_private_directory",
    "publish",
    "remove",
    "settings",
    "takes_random_writes",
    "use",
    "use_session",
]

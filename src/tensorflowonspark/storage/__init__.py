"""Paths and files, wherever they are: the only folder that knows file systems.

A path is one of this machine, or a URL: ``hdfs://`` and ``viewfs://``, ``s3://`` (also ``s3a`` and ``s3n``), ``gs://``,
``abfs://`` (also ``abfss``), and any other that fsspec has an adapter for. Credentials and addresses come from the
Hadoop settings of the Spark application (`hadoop`), or else from where the libraries look for them. Importing this
loads none of these libraries, and neither Spark nor TensorFlow.
"""

from tensorflowonspark.storage.file_systems import file_system, is_local
from tensorflowonspark.storage.hadoop import absolute_path, default_fs, hadoop_settings, settings, use, use_session
from tensorflowonspark.storage.transfer import DirectorySync, fetch, publish, remove

__all__ = [
    "DirectorySync",
    "absolute_path",
    "default_fs",
    "fetch",
    "file_system",
    "hadoop_settings",
    "is_local",
    "publish",
    "remove",
    "settings",
    "use",
    "use_session",
]

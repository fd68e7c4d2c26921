"""A Spark application that serves Spark Connect until its standard input ends: ``connect_server.py PORT DIRECTORY``."""

import sys

from pyspark.sql import SparkSession

session = (
    SparkSession.builder.master("local[4]")
    .config("spark.plugins", "org.apache.spark.sql.connect.SparkConnectPlugin")
    .config("spark.connect.grpc.binding.address", "127.0.0.1")
    .config("spark.connect.grpc.binding.port", sys.argv[1])
    .config("spark.local.dir", sys.argv[2])
    .config("spark.hadoop.fs.s3a.endpoint", "set-by-the-server")
    .config("spark.hadoop.fs.s3a.session.token", "not to be had")
    # By which Spark ends what a client does that has vanished: by default these are 2 min, 5 min and 30 s.
    .config("spark.connect.execute.reattachable.senderMaxStreamDuration", "10s")
    .config("spark.connect.execute.manager.detachedTimeout", "10s")
    .config("spark.connect.execute.manager.maintenanceInterval", "2s")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "2")
    .getOrCreate()
)
sys.stdout.write("up\n")
sys.stdout.flush()
sys.stdin.read()
session.stop()

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
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "2")
    .getOrCreate()
)
sys.stdout.write("up\n")
sys.stdout.flush()
sys.stdin.read()
session.stop()

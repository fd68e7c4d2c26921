"""Spark tasks (Spark's Python workers): launch a node, feed a node. Imports no TensorFlow."""

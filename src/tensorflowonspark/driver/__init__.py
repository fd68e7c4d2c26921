"""The Spark driver: start a cluster, feed it, watch it, end it. Imports no TensorFlow."""

"""What runs inside a Spark task, in Spark's Python worker: placing a node, and feeding one. TensorFlow is not here."""

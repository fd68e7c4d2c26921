"""The node: the process in which TensorFlow and the user's function run."""

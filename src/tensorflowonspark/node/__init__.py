"""What runs in a node: the process in which TensorFlow and the user's function run."""

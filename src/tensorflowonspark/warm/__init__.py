"""What runs in a fork server: a process that has imported TensorFlow, and does nothing but fork nodes.

One runs beside each executor, once a node there has imported TensorFlow by itself. The nodes of later clusters, and
those that are started again, are forked from it, and so have TensorFlow from their first moment on.
"""

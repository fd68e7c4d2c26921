"""The fork server: a process per executor that has imported TensorFlow, and forks nodes.

One runs beside each executor, once a node there has imported TensorFlow by itself. The nodes of later clusters, and
those that are started again, are forked from it, and so have TensorFlow from their first moment on.
"""

"""Fork servers: a process per executor that has imported TensorFlow and forks nodes.

It is started when a node of the executor has imported TensorFlow. Nodes of later clusters and of restarts are forked
from it, and so start with TensorFlow imported.
"""

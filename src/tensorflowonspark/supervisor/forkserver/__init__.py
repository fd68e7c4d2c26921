"""Fork servers: a process per executor that has imported TensorFlow, or Keras with JAX, and forks nodes.

It is started when a node of the executor has imported them. Nodes of later clusters and of restarts are forked from it,
and so start with the imports done.
"""

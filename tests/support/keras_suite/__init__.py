"""Keras's own tests, run in the nodes of a cluster of two workers (``make keras-suite``)."""

"""Supervisors: one small process per node, between the Spark task and the node.

A supervisor starts the node, forwards messages between it and the driver, captures its output, explains its exit, and
ends it with the executor, the driver or itself.
"""

"""What runs in a supervisor: the small process between a Spark task and the node that the task started.

It holds one node: starts it, passes messages between it and the driver, captures its output, understands its end,
and sees to it that nothing outlives the executor, the driver or itself.
"""

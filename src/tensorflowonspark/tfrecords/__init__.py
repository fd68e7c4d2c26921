"""TFRecord files as DataFrames, read and written in the driver and in Spark's tasks without TensorFlow or a jar.

`framing` handles frames, checksums and compression, `wire` the format of Protocol Buffers, and `examples` the messages;
`decode` and `encode` convert between these and Arrow columns. `files` lists and divides files, and `infer` derives
their columns. `reading` and `writing` are the work of a task, which `functions` (any Spark) and `source` (Spark 4)
start.
"""

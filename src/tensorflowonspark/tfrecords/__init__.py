"""TFRecord files as DataFrames, read and written in the driver and in Spark's tasks without TensorFlow or a jar.

`framing` handles frames, checksums and compression, `wire_format` is that of Protocol Buffers, and `examples` handles
the messages; `decode` and `encode` convert between these and Arrow columns. `splits` divides files, and `infer` derives
their columns. `reading` and `writing` are the work of a task, which `dataframes` (any Spark) and `source` (Spark 4)
start.
"""

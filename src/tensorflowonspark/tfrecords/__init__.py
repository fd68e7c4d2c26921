"""TFRecord files as DataFrames and back, without TensorFlow and without a jar; runs in the driver and in Spark's tasks.

`framing` knows the files' frames and `compression` their compression, `spans` and `wire` Protocol Buffers' format,
`examples` and `values` the messages, `decode` and `encode` lead from these to Arrow columns and back; `files` knows
directories, `schema` and `infer` columns, `reading` and `writing` are what a task does, `functions`, `source` and
`stream` the ways to it.
"""

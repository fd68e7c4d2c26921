"""Programs of Keras and tf.data, run under each strategy and compared with one process; see `test_table`."""

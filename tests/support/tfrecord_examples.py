"""Messages as TensorFlow makes them, to read what we write and to write what we read."""

import tensorflow as tf


def example(**features):
    return tf.train.Example(features=tf.train.Features(feature=features))


def ints(*values):
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def floats(*values):
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def texts(*values):
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def write(path, *examples):
    """Write a file; return its path as a string."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for each in examples:
            writer.write(each.SerializeToString())
    return str(path)

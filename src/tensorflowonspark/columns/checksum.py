"""A checksum of rows, by which a partition that Spark computes again is found to have other ones."""

import pyarrow as pa


def checksum(batch: pa.RecordBatch, before: int = 0) -> int:
    """Return the CRC-32C of rows, continued from that of the rows before them; it costs about 0.1 s per GB.

    The same rows in batches of other sizes have another checksum.

    Examples
    --------
    >>> whole = pa.record_batch({"x": [1, 2, 3]})
    >>> checksum(whole) == checksum(pa.record_batch({"x": [1, 2, 3]}))
    True
    >>> checksum(whole) == checksum(pa.record_batch({"x": [1, 3, 2]}))
    False
    """
    import google_crc32c  # which a logged model is served without

    if any(column.offset for column in batch.columns):  # else the buffers have other rows too
        return int(google_crc32c.extend(before, batch.serialize()))
    for column in batch.columns:
        for buffer in column.buffers():
            if buffer is not None:
                before = google_crc32c.extend(before, buffer)
    return before

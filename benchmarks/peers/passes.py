"""What every contender's processes do: pass over all rows some times, count and check them, and note the time.

It needs numpy alone, because contenders import it in environments of their own.
"""

import time

import numpy as np

EPOCHS = 3
BATCH = 256  # of each of the two processes
WIDTH = 784
PARTITIONS = 8
BYTES_PER_ROW = WIDTH * 4 + 4


def pass_over(epoch, ready):
    """Take all batches of each epoch.

    Parameters
    ----------
    epoch : callable
        Returns an iterable of the next epoch's batches: pairs of float32 (rows, 784) and the numbers of the rows.
    ready : float
        The time at which the process was able to ask for rows.

    Returns
    -------
    dict
        The times at which it was ready, of its first batch, and of the end of each epoch; for each epoch the number of
        rows, the sum of their numbers, and of these squared, which tell a row that is missing or was seen twice.
    """
    first, ends, seen = None, [], []
    for _ in range(EPOCHS):
        rows = total = squares = 0
        for x, y in epoch():
            first = first or time.time()
            numbers = np.asarray(y, np.int64)
            if x.dtype != np.float32 or x.shape != (len(numbers), WIDTH):
                raise ValueError(f"a batch of {x.dtype} {x.shape} for {len(numbers)} rows")
            if not np.array_equal(x[:, 0], numbers):
                raise ValueError("features and numbers are not those of the same rows")
            rows += len(numbers)
            total += int(numbers.sum())
            squares += int((numbers * numbers).sum())
        ends.append(time.time())
        seen.append((rows, total, squares))
    return {"ready": ready, "first": first, "ends": ends, "seen": seen, "memory": most_memory()}


def most_memory():
    """Return the bytes that this process has had resident at most."""
    with open("/proc/self/status") as status:  # getrusage counts those of the process that has started this one
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM:"))


def check(name, rows, processes):
    """Raise ValueError unless the processes have seen each row once in each epoch."""
    wanted = [rows, rows * (rows - 1) // 2, (rows - 1) * rows * (2 * rows - 1) // 6]
    for epoch in range(EPOCHS):
        found = [sum(each["seen"][epoch][place] for each in processes) for place in range(3)]
        if found != wanted:
            raise ValueError(f"{name}, epoch {epoch}: rows, sum and sum of squares are {found}, not {wanted}")


def spans(begin, written, processes):
    """Return the seconds of each stage; the stages follow each other, and their sum is the whole time.

    Parameters
    ----------
    begin, written : float
        When the contender was given the DataFrame, and when its files were written (the same if it writes none).
    processes : list of dict
        From `pass_over`. A stage ends when it has ended in all of them.
    """
    ready, first = (max(each[name] for each in processes) for name in ("ready", "first"))
    ends = [max(each["ends"][epoch] for each in processes) for epoch in range(EPOCHS)]
    return {
        "write": written - begin,
        "start": ready - written,
        "first": first - ready,
        "epochs": [end - since for since, end in zip([first, *ends], ends, strict=False)],
        "memory": max(each["memory"] for each in processes),
    }

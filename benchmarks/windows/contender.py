"""Contender: one cluster of two workers, which pass once over windows that Spark's SQL makes, or that they make."""

import json
import tempfile
import time
from datetime import timedelta
from pathlib import Path

from benchmarks.common.rounds import serve_rounds
from benchmarks.common.spark import two_whole_workers

LENGTH, HORIZON, BATCH = 56, 7, 256


def program(directory, ctx):
    """Pass once over each feed; write the seconds, the windows and the bytes that this worker was sent."""
    import numpy as np

    import tensorflowonspark as tfos

    window = tfos.Window("store", "day", length=LENGTH, horizon=HORIZON, gap=timedelta(days=1))
    options = {"features": ["sales", "price"], "label": "sales", "window": window}
    made = {"features": ["sales", "price"], "label": "after"}
    for number, feed in enumerate(ctx.feeds()):
        way = Path(directory, f"way-{number}").read_text()
        begin, windows = time.perf_counter(), 0
        for _, _, weights in feed.batches(BATCH, **(options if way == "nodes" else made)):
            windows += int((~np.signbit(weights)).sum())
        seconds = time.perf_counter() - begin
        sent = sum(batch.nbytes for batch in feed._share.rows.batches)
        found = {"epoch": seconds, "windows": windows, "sent": sent}
        Path(directory, f"found-{number}-{ctx.index}").write_text(json.dumps(found))


def by_sql(frame):
    """Return windows as Spark's SQL makes them: of each row with as many rows before it, without gaps."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    span = LENGTH + HORIZON
    over = Window.partitionBy("store").orderBy("day").rowsBetween(-span + 1, 0)
    lists = {name: f.collect_list(name).over(over) for name in ("sales", "price")}
    first = f.first("day").over(over)
    whole = frame.select("day", first.alias("first"), *(each.alias(name) for name, each in lists.items()))
    whole = whole.where((f.size("sales") == span) & (f.datediff("day", "first") == span - 1))
    inside = [f.slice(name, 1, LENGTH).alias(name) for name in lists]
    return whole.select(*inside, f.slice("sales", LENGTH + 1, HORIZON).alias("after"))


def main():
    """Serve the rounds."""
    import tensorflowonspark as tfos

    with two_whole_workers("2g") as session, tempfile.TemporaryDirectory() as directory:
        frames = {}

        def frame(stores, days):
            from pyspark.sql import functions as f

            if (stores, days) not in frames:
                day = f.date_add(f.lit("2024-01-01").cast("date"), (f.col("id") / stores).cast("int"))
                store = f.concat(f.lit("store "), f.col("id") % stores)
                values = [f.sin("id").cast("float").alias("sales"), f.cos("id").cast("float").alias("price")]
                made = session.range(0, stores * days, 1, 8).select(store.alias("store"), day.alias("day"), *values)
                frames[stores, days] = made.cache()
                frames[stores, days].count()
            return frames[stores, days]

        with tfos.Cluster(session, program, directory, num_workers=2) as cluster:
            fed = 0

            def one_round(request):
                nonlocal fed
                rows = frame(request["stores"], request["days"])
                Path(directory, f"way-{fed}").write_text(request["way"])
                begin = time.perf_counter()
                if request["way"] == "nodes":
                    cluster.train(rows.repartition(8, "store"), rebalance=False)
                else:
                    cluster.train(by_sql(rows))
                seconds = time.perf_counter() - begin
                found = [json.loads(each.read_text()) for each in Path(directory).glob(f"found-{fed}-*")]
                fed += 1
                whole = {name: sum(each[name] for each in found) for name in ("windows", "sent")}
                return {"seconds": seconds, "epoch": max(each["epoch"] for each in found), **whole}

            serve_rounds(one_round)


if __name__ == "__main__":
    main()

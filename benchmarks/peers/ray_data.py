"""A process that starts Ray, and two actors that read a directory of Parquet files with Ray Data's streaming_split."""

import time

import ray

from benchmarks.common.rounds import serve_rounds
from benchmarks.peers import passes


def as_tensors(table):
    """Return a block whose lists of equal length are a matrix, so that its batches are not arrays of objects."""
    features = table["features"].combine_chunks().flatten().to_numpy()
    return {"features": features.reshape(-1, passes.WIDTH), "label": table["label"].to_numpy()}


@ray.remote(num_cpus=0)  # both processors are for reading
class Reader:
    """Takes the batches of one of the splits."""

    def __init__(self):
        self._started = time.time()

    def started(self):
        """Return the time at which the actor was up."""
        return self._started

    def run(self, split, ready, buffer):
        """Return what `passes.pass_over` returns."""

        def epoch():
            shuffle = {"local_shuffle_buffer_size": buffer} if buffer else {}
            batches = split.iter_batches(batch_size=passes.BATCH, batch_format="numpy", prefetch_batches=2, **shuffle)
            return ((each["features"], each["label"]) for each in batches)

        return passes.pass_over(epoch, ready)


def read(request):
    """Return a list of what the actors have noted."""
    ray.data.DataContext.get_current().enable_progress_bars = False
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _temp_dir=request["scratch"])
    readers = [Reader.remote() for _ in range(2)]
    ray.get([each.started.remote() for each in readers])
    ready = time.time()
    data = ray.data.read_parquet(request["directory"], shuffle="files")
    data = data.map_batches(as_tensors, batch_format="pyarrow", batch_size=None, zero_copy_batch=True)
    if request["kept"]:
        data = data.materialize()
    splits = data.streaming_split(2, equal=True)
    jobs = [each.run.remote(split, ready, request["buffer"]) for each, split in zip(readers, splits, strict=True)]
    found = ray.get(jobs)
    ray.shutdown()
    return found


if __name__ == "__main__":
    serve_rounds(read)

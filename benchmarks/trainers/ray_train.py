"""A process that starts Ray, and trains with ``tf_keras`` in two workers of its ``TensorflowTrainer``."""

import json
import time
from pathlib import Path

import ray
import ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.tensorflow import TensorflowTrainer, prepare_dataset_shard

from benchmarks.common.rounds import serve_rounds
from benchmarks.peers.ray_data import as_tensors
from benchmarks.trainers import training

_SHUFFLE_BUFFER = 4096  # rows
_PROCESSORS = 4  # that Ray may assign: two for the workers, two for reading


def work(config):
    """Train on a worker; leave what `training.train` returns in a file."""
    times = [time.time()]
    import tensorflow as tf
    import tf_keras

    times.append(time.time())
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = training.build(tf_keras, config["model"])
    times.append(time.time())
    shard = ray.train.get_dataset_shard("train")
    rows = shard.to_tf("features", "label", batch_size=training.BATCH, local_shuffle_buffer_size=_SHUFFLE_BUFFER)
    notes = training.train(tf_keras, model, prepare_dataset_shard(rows), times)
    rank = ray.train.get_context().get_world_rank()
    (Path(config["scratch"]) / f"worker-{rank}.json").write_text(json.dumps(notes))


def run(request):
    """Return what the workers have noted, and when the trainer's call returned."""
    ray.data.DataContext.get_current().enable_progress_bars = False
    scratch = request["scratch"]
    ray.init(
        num_cpus=_PROCESSORS,
        include_dashboard=False,
        log_to_driver=False,
        _temp_dir=scratch,
        _node_ip_address="127.0.0.1",
    )
    data = ray.data.read_parquet(request["directory"])
    data = data.map_batches(as_tensors, batch_format="pyarrow", batch_size=None, zero_copy_batch=True)
    trainer = TensorflowTrainer(
        work,
        train_loop_config=request,
        datasets={"train": data.materialize()},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=f"{scratch}/results"),
    )
    trainer.fit()
    returned = time.time()
    workers = [json.loads(each.read_text()) for each in sorted(Path(scratch).glob("worker-*.json"))]
    ray.shutdown()
    return {"workers": workers, "returned": returned}


if __name__ == "__main__":
    serve_rounds(run)

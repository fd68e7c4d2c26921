"""A process that restores a checkpoint, and one with a copy: python -m benchmarks.checkpoints.restoring MEGABYTES

The other host is another process, at another address of this machine.
"""

import multiprocessing
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from benchmarks.checkpoints.contender import make_model
from benchmarks.common.rounds import serve_rounds


def _setup(number, folder, credentials):
    from tensorflowonspark.config import ClusterConfig, ClusterSpec
    from tensorflowonspark.node.setup import NodeSetup

    private = Path(folder, f"private-{number}")
    private.mkdir()
    return NodeSetup(
        config=ClusterConfig(ClusterSpec(2), b"", run="run", attempt=1),
        number=number,
        host=f"127.0.0.{number + 1}",
        credentials=credentials,
        feed_socket=str(private / "feed"),
        local_directory=str(private),
        run_directory=str(Path(folder, f"run-{number}")),
    )


def _serve(setup, pipe):
    from tensorflowonspark.node.feed.feed_server import FeedServer

    server = FeedServer(setup, lambda _: None)
    pipe.send(server.ready)
    pipe.recv()  # until the end


def main(megabytes):
    """Serve the seconds in which the state of a model is restored."""
    import tensorflow as tf

    from tensorflowonspark import transport
    from tensorflowonspark.messages import NodeEndpoint
    from tensorflowonspark.node.checkpoint.checkpoints import Checkpoints
    from tensorflowonspark.node.checkpoint.copies import Copies
    from tensorflowonspark.node.checkpoint.saving import SavingNode
    from tensorflowonspark.node.checkpoint.writer import SavePolicy, Writers
    from tensorflowonspark.node.feed.feed_server import FeedServer

    folder = tempfile.mkdtemp()
    credentials = transport.new_credentials(tls=False, patience=10.0)
    setups = [_setup(number, folder, credentials) for number in range(2)]
    own = FeedServer(setups[0], lambda _: None)
    near, far = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(setups[1], far), daemon=True)
    process.start()
    endpoints = [
        NodeEndpoint(each.number, str(each.role), each.host, ready)
        for each, ready in zip(setups, (own.ready, near.recv()), strict=True)
    ]
    model = make_model(float(megabytes))
    state = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    directory = f"{folder}/kept"

    def checkpoints(attempt, copies):
        setup = replace(setups[0], config=replace(setups[0].config, attempt=attempt))
        link = SimpleNamespace(endpoints=lambda: tuple(endpoints))
        writer = Writers().of(directory, Copies(link, setup, directory, 1) if copies else None)
        return Checkpoints(directory, SavePolicy(copies=copies, wait=True), SavingNode("worker:0"), writer=writer)

    checkpoints(0, 1).save(state, 1)

    def run_round(request):
        how, missing = request["how"], []
        if how != "directory":  # it can't be reached
            missing.append(directory)
        if how == "neighbour":
            missing.append(setups[0].run_directory)
        for each in missing:
            Path(each).rename(f"{each}-away")
        if how != "directory":
            Path(directory).touch()
        try:
            begun = time.monotonic()
            step = checkpoints(1, 0 if how == "directory" else 1)._restore(state, is_built=True).step
            seconds = time.monotonic() - begun
        finally:
            if how != "directory":
                Path(directory).unlink()
            for each in missing:
                shutil.rmtree(each, ignore_errors=True)
                Path(f"{each}-away").rename(each)
        return {"seconds": seconds, "step": step}

    try:
        serve_rounds(run_round)
    finally:
        process.kill()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])

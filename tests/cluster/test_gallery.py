"""The programs of examples/, each run as a user runs it, with the smallest arguments."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.paths import ROOT

SUBMIT = ("spark-submit", "--master", "local[2]", "--conf", "spark.ui.enabled=false")
TFOS_RUN = ("tfos", "run", "--master", "local[2]", "--workers", "2", "--show", "all")


@dataclass(frozen=True)
class Example:
    """A program of the gallery.

    Parameters
    ----------
    program : str
        Its file, below ``examples``.
    arguments : str
        Its arguments, for a short run.
    last_lines : str
        A pattern that its last lines match; lines of TensorFlow may stand between the program's.
    files : tuple of str
        The files that it writes, in its working directory.
    command : tuple of str
        What runs it.
    """

    program: str
    arguments: str
    last_lines: str
    files: tuple[str, ...] = ()
    command: tuple[str, ...] = SUBMIT


EXAMPLES = [
    Example(
        "lora/finetune.py",
        "--epochs 1 --rows 64",
        r"trained 19,840 of 124,032 weights; .*\nadapter: .*\n(.*\n)*surprise at sentences on zyx: \d\.\d{3}$",
        ("lora/adapter.lora.h5", "lora/scores/saved_model.pb", "lora/preset/config.json"),
    ),
    Example(
        "mnist/function.py",
        "--epochs 1",
        r"worker:1 on \S+: \d+ of 360 .*\nmodel: .*\naccuracy on the 360 held-out scans: 0\.\d{3}$",
        ("mnist-function/digits.keras",),
    ),
    Example(
        "mnist/fed.py",
        "--epochs 1",
        r"accuracy on the 360 held-out scans: 0\.\d{3}\npicture: demo-output/digits.png$",
        ("demo-output/digits.png", "demo-output/model/saved_model.pb"),
    ),
    Example(
        "mnist/estimator.py",
        "--epochs 1",
        r"the saved pipeline: (\d+) of \1 predictions are the same\naccuracy on the \1 held-out scans: 0\.\d{3}$",
        ("mnist-estimator/stages",),
    ),
    Example(
        "mnist/script.py",
        "--epochs 1 --model script.keras",
        r"\[worker:(\d)\] worker \1: accuracy 0\.\d{3}",
        ("script.keras",),
        TFOS_RUN,
    ),
    Example(
        "segmentation/unet.py",
        "--epochs 1 --rows 64",
        r"mean intersection over union on the 320 held-out scenes: 0\.\d{3}$",
        ("segmentation/segmentation.png", "segmentation/unet.keras"),
    ),
    Example(
        "cifar10_resnet/resnet.py",
        "--epochs 1 --rows 128 --mixed-precision",
        r"this run trained 1 of 1 epochs: .*\n(.*\n)*picture: .*\naccuracy on the 720 held-out images: 0\.\d{3}$",
        ("resnet/resnet.keras", "resnet/checkpoints", "resnet/digits.png"),
    ),
    *[
        Example(
            "imagenet_inception/train.py",
            f"--network {network} --epochs 1 --rows 160",
            rf"recognized: none \d+%, .*\naccuracy of {network} on the 800 held-out images: 0\.\d{{3}}$",
            (f"inception/{network}.keras", "inception/tfrecords/train/_SUCCESS", "inception/damages.png"),
        )
        for network in ("inception", "vgg")
    ],
    Example(
        "batch_inference/apply.py",
        "--epochs 1",
        r"the embedding, all ten digits, accuracy on held-out scans: 0\.\d{3}$",
        ("batch-inference/neighbors.png", "batch-inference/predictions/_SUCCESS"),
    ),
    Example(
        "custom_loop/loop.py",
        "--epochs 1 --batch-size 4096 --accumulate 4",
        r"epoch 0: loss 0\.\d+\n(.*\n)*picture: .*\npeak signal-to-noise ratio on the 6848 held-out pixels: [\d.]+ dB$",
        ("custom-loop/photograph.png", "custom-loop/photograph.keras", "custom-loop/checkpoints"),
    ),
    Example(
        "gan/gan.py",
        "--epochs 1",
        r"has learned from 2000 drawn digits alone: 0\.\d{3}$",
        ("gan/digits.png", "gan/generator.keras"),
    ),
    Example(
        "text/lstm.py",
        "--epochs 1 --words 10",
        r"accuracy on the \d+ held-out docstrings: 0\.\d+\nof naive Bayes .*: 0\.\d+; the largest class: 0\.\d+$",
        ("lstm_model/model/model.keras",),
    ),
    Example(
        "text/transformer.py",
        "--epochs 1 --length 32 --batch-size 512",
        r"the model writes: Return the .*\nbits per held-out character: \d\.\d+; of trigrams: \d\.\d+$",
        ("transformer.keras",),
    ),
    Example(
        "wide_deep/wide_deep.py",
        "--epochs 1 --rows 5000",
        r"popularity: 0\.\d+\nAUC of the model \(wide and deep\): 0\.\d+\nthe best possible AUC: 0\.\d+$",
        ("wide_deep.keras",),
    ),
    Example(
        "time_series/forecast.py",
        "--epochs 1 --shops 2 --days 60",
        r"a week before: [\d.]+ units\nmean absolute error of the forecast: [\d.]+ units\npicture: .*png$",
        ("forecast/forecast.png", "forecast/model/model/model.keras"),
    ),
    Example(
        "streaming/streaming.py",
        "--files 2 --rows 100",
        r"stopped after \d+ rows and (\d+) steps; \1 steps with those of earlier runs$",
        ("stream/model", "stream/progress/commits/0"),
    ),
    Example(
        "search/tune_digits.py",
        "--trials 2 --epochs 1 --storage sqlite:///digits.db",
        r"accuracy on the \d+ held-out scans after 3 epochs: 0\.\d+$",
        ("search.png", "digits.db"),
    ),
    Example(
        "search/kt_wine.py",
        "--trials 2 --epochs 1",
        r"\[worker:1\] accuracy on 54 held-out wines: [01]\.\d+",
        ("kt_search/wine",),
        TFOS_RUN,
    ),
    Example(
        "parameter_servers/parameter_servers.py",
        "--epochs 1",
        r"logistic regression on \d+ held-out rows: 0\.\d+\naccuracy of the network on \d+ held-out rows: 0\.\d+$",
        ("parameter_servers.keras",),
    ),
    Example(
        "diloco/diloco.py",
        "--epochs 1",
        r"in step: \d+ exchanges, .*\nDiLoCo: \d+ exchanges, [\d.]+ MB sent by a worker, accuracy 0\.\d+\npicture: .*$",
        ("diloco.png",),
    ),
    Example(
        "jax/jax_backend.py",
        "--epochs 1 --backends jax",
        r"jax: loss [\d.]+, accuracy 0\.\d+ on held-out digits$",
        ("digits_jax.keras",),
    ),
]


def name_of(example):
    """Return the name of an example's test."""
    return f"{example.program} {example.arguments}".replace(" --", ",").replace(" ", "=")


@pytest.mark.slow
@pytest.mark.timeout(600)  # more than a minute where nothing else runs, and a Spark application each
@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_an_example(example, tmp_path):
    program = ROOT / "examples" / example.program
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        [*example.command, program, *example.arguments.split()],
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=540,
    )
    assert not done.returncode, done.stdout + done.stderr
    lines = done.stderr if example.command is TFOS_RUN else done.stdout
    assert re.search(example.last_lines, lines.strip()), lines
    assert [each for each in example.files if not (tmp_path / each).exists()] == []

"""What a command says about the signal that ends it."""

import signal

import pytest

from tensorflowonspark.cli import check, main
from tensorflowonspark.cli.signals import Signalled, ended_by_signals


def test_a_command_says_what_follows(capfd):
    with pytest.raises(Signalled), ended_by_signals("the nodes end"):
        signal.raise_signal(signal.SIGTERM)
    assert capfd.readouterr().err == "SIGTERM: the nodes end\n"


def test_a_check_names_none_of_the_options_of_a_run(monkeypatch, capfd):
    monkeypatch.setattr(check, "examine_environment", lambda: ({"pyspark": "4", "java": "17"}, []))
    monkeypatch.setattr(check, "python_problems", list)
    monkeypatch.setattr(check, "own_environment", dict)
    monkeypatch.setattr("tensorflowonspark.cli.spark.submit_arguments", lambda *_: signal.raise_signal(signal.SIGTERM))
    assert main(["check", "--master", "local[2]"]) == 128 + signal.SIGTERM
    stopped = "SIGTERM: Spark's application is stopped; another signal ends this command without that\n"
    assert capfd.readouterr().err == f"{stopped}ended by SIGTERM\n"

"""Contenders: processes that run one round per request and take turns.

Contenders import this module with the Python of TensorFlowOnSpark 2.2.5, too: it needs the standard library alone.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).parents[2]
_RELEASE_2X = ["tensorflowonspark==2.2.5", "pyspark==3.5.9", "tensorflow==2.15.1", "setuptools<80", "six", "numpy<2"]


def serve_rounds(run_round):
    """Run rounds on request, in a contender's process.

    Parameters
    ----------
    run_round : callable
        From a request (dict) to a result, both of which JSON can represent.
    """
    out = sys.stdout
    sys.stdout = sys.stderr  # other output must not be taken for a result
    for line in sys.stdin:
        print(json.dumps(run_round(json.loads(line))), file=out, flush=True)


class Contender:
    """A contender's process, as the parent sees it.

    Parameters
    ----------
    arguments : list of str
        Of its Python, such as ``["-m", "benchmarks.feed.contenders", "ours"]``.
    log : file
        Receives its standard error.
    python : str
        The Python that runs it.
    tree : pathlib.Path
        The work tree that it runs in.
    settings : dict of str to str
        Further environment variables.
    seconds : float, optional
        The most that a round may take; then the process is killed, and the round fails.
    """

    def __init__(self, arguments, log, python=sys.executable, tree=ROOT, settings=None, seconds=None):
        self._name = " ".join(arguments)
        self._seconds = seconds
        self._process = subprocess.Popen(
            [python, *arguments],
            cwd=tree,
            env={**_inherited(python), **(settings or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait(60)

    def round(self, request):
        """Return the result of one round; a string is sent as it is, anything else as JSON."""
        line = request if isinstance(request, str) else json.dumps(request)
        limit = threading.Timer(self._seconds, self._process.kill)
        limit.daemon = True
        limit.start()
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        result = self._process.stdout.readline()
        limit.cancel()
        if not result:
            sys.exit(f"{self._name} ended in the round {line}: see its log")
        return json.loads(result)

    def turn(self, **request):
        """Return a function that runs one round of this request."""
        return lambda: self.round(request)


def take_turns(turns, rounds, title, *, shown=str, warm_up=True):
    """Run rounds of all contenders in turn.

    Parameters
    ----------
    turns : dict of str to callable
        By name, a function that runs one round and returns its result.
    rounds : int
        How many rounds count.
    title : str
        Names the measurement in the progress output.
    shown : callable
        From a result to a text for the progress output.
    warm_up : bool
        Whether a round that does not count comes first.

    Returns
    -------
    dict of str to list
        The results of the rounds that count, by name.
    """
    found = {name: [] for name in turns}
    for number in range(1 - warm_up, rounds + 1):
        for name in turns if number % 2 else reversed(list(turns)):  # no contender is always the first
            result = turns[name]()
            print(f"round {number}: {title}, {name}: {shown(result)}", file=sys.stderr, flush=True)
            if number:
                found[name].append(result)
    return found


def python_with(packages, venv, python=sys.executable):
    """Return the Python that has these packages; make its virtual environment if there is none.

    Parameters
    ----------
    packages : list of str
        What pip installs.
    venv : pathlib.Path
        The environment's directory. None is left if pip fails, which raises CalledProcessError.
    python : str
        Makes the environment.
    """
    made = venv.absolute() / "bin/python"
    if not made.exists():
        try:
            subprocess.run([python, "-m", "venv", str(venv)], check=True)
            subprocess.run([str(made), "-m", "pip", "install", "--quiet", *packages], check=True)
        except BaseException:
            shutil.rmtree(venv, ignore_errors=True)
            raise
    return str(made)


def python_of_2x(options):
    """Return the Python that has TensorFlowOnSpark 2.2.5; make its virtual environment if there is none."""
    return python_with(_RELEASE_2X, options.old_venv, options.old_python)


def _inherited(python):
    own = python == sys.executable  # this Python's own packages are not for another one
    inherited = {name: value for name, value in os.environ.items() if own or name != "PYTHONPATH"}
    return {**inherited, "TF_CPP_MIN_LOG_LEVEL": "2", "KERAS_BACKEND": "tensorflow"}

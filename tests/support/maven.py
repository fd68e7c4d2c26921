"""Programs in Java that tests run from their source; their jars come by Maven, once for a checkout."""

import os
import shutil
import subprocess
import uuid
from queue import Empty, SimpleQueue
from threading import Thread

from tests.support.paths import DOWNLOADS

_FETCH_SECONDS = 100
_START_SECONDS = 60


def what_is_missing(name):
    """Return what the program with these jars needs and this machine has not, for the user to install; or ""."""
    if not (DOWNLOADS / name).is_dir() and shutil.which("mvn") is None:
        return f"the {name} come by Maven, and there is no mvn: install it (Debian: apt install maven)"
    if shutil.which(java()) is None:
        return f"the {name} need a JDK: install it (Debian: apt install openjdk-17-jdk), or set JAVA_HOME"
    return ""


def fetch_jars(name, pom):
    """Return the folder with the jars of a ``pom.xml``; Maven copies them there if no earlier run has."""
    jars = DOWNLOADS / name
    if not jars.is_dir():
        half = jars.with_name(f"{name}-{uuid.uuid4().hex}")
        command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={half}"]
        try:
            subprocess.run(command, check=True, timeout=_FETCH_SECONDS)
            half.rename(jars)
        except OSError:
            assert jars.is_dir()  # another run was quicker
        finally:
            shutil.rmtree(half, ignore_errors=True)
    return jars


def java():
    """Return the command that starts Java."""
    home = os.environ.get("JAVA_HOME")
    return os.path.join(home, "bin", "java") if home else "java"


class Answering:
    """A process that writes a line for each line that it reads, and ends with its input.

    Parameters
    ----------
    command : list of str
        What it runs.
    log : pathlib.Path
        The file for its standard error.
    directory : str
        Its working directory.
    """

    def __init__(self, command, log, directory):
        self._log = log
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                command, cwd=directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self._answers = SimpleQueue()
        Thread(target=self._listen, daemon=True).start()

    def ask(self, order):
        """Send a line; return the one that it answers."""
        self.process.stdin.write(f"{order}\n")
        self.process.stdin.flush()
        return self.answer(order)

    def answer(self, order):
        """Return the next line."""
        try:
            answer = self._answers.get(timeout=_START_SECONDS)
        except Empty:
            answer = ""
        assert answer, f"{order}: no answer:\n{self._log.read_text()[-4000:]}"
        return answer

    def close(self):
        """End it."""
        self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()

    def _listen(self):
        for line in self.process.stdout:
            self._answers.put(line.strip())
        self._answers.put("")

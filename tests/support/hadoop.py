"""A real HDFS and a real YARN: Hadoop's own mini cluster, as a process that ends with this one.

Its jars come from Maven, once for a checkout.
"""

import os
import shutil
import subprocess
import uuid
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from xml.sax.saxutils import escape

from tests.support.paths import DOWNLOADS, SUPPORT

_PROGRAM = SUPPORT / "minicluster" / "MiniCluster.java"
_JARS = DOWNLOADS / "hadoop-jars"
_FETCH_SECONDS = 100
_START_SECONDS = 60


def what_is_missing():
    """Return what a mini cluster needs and this machine has not, for the user to install; empty if all is there."""
    if not _JARS.is_dir() and shutil.which("mvn") is None:
        return "HDFS and YARN come by Maven, and there is no mvn: install it (Debian: apt install maven)"
    if shutil.which(_java()) is None:
        return "HDFS and YARN need a JDK: install it (Debian: apt install openjdk-17-jdk), or set JAVA_HOME"
    return ""


def fetch_jars():
    """Return the folder with the jars; Maven copies them there if no earlier run has."""
    if not _JARS.is_dir():
        half = _JARS.with_name(f"{_JARS.name}-{uuid.uuid4().hex}")
        pom = str(_PROGRAM.with_name("pom.xml"))
        command = ["mvn", "-q", "-B", "-f", pom, "dependency:copy-dependencies", f"-DoutputDirectory={half}"]
        try:
            subprocess.run(command, check=True, timeout=_FETCH_SECONDS)
            half.rename(_JARS)
        except OSError:
            assert _JARS.is_dir()  # another run was quicker
        finally:
            shutil.rmtree(half, ignore_errors=True)
    return _JARS


class MiniCluster:
    """One name node and one data node, and YARN once it is asked for.

    Parameters
    ----------
    directory : str
        Where it keeps all of its files.
    """

    def __init__(self, directory):
        self._directory = Path(directory)
        self._log = self._directory / "minicluster.log"
        options = ["-Xmx1g", "-XX:TieredStopAtLevel=1", "--add-opens", "java.base/java.lang=ALL-UNNAMED"]
        options.append(f"-Djava.io.tmpdir={directory}")  # Jetty unpacks its pages there, and leaves them
        command = [_java(), *options, "-cp", f"{fetch_jars()}/*", str(_PROGRAM), f"{directory}/dfs"]
        with self._log.open("wb") as log:
            # YARN puts its files where it is started.
            self.process = subprocess.Popen(
                command, cwd=directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self._answers = SimpleQueue()
        Thread(target=self._listen, daemon=True).start()
        self._yarn_folder = None
        self.url = self._ask("hdfs")

    def yarn(self):
        """Start YARN if it does not run yet; return the folder for HADOOP_CONF_DIR."""
        if self._yarn_folder is None:
            manager, scheduler = self._ask("yarn").split()
            folder = self._directory / "conf"
            folder.mkdir()
            write_settings(folder / "core-site.xml", {"fs.defaultFS": self.url, "dfs.replication": "1"})
            addresses = {"address": manager, "scheduler.address": scheduler}
            write_settings(
                folder / "yarn-site.xml",
                {f"yarn.resourcemanager.{name}": value for name, value in addresses.items()},
            )
            self._yarn_folder = str(folder)
        return self._yarn_folder

    def close(self):
        """End it."""
        self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()

    def _ask(self, order):
        self.process.stdin.write(f"{order}\n")
        self.process.stdin.flush()
        try:
            answer = self._answers.get(timeout=_START_SECONDS)
        except Empty:
            answer = ""
        assert answer, f"the mini cluster's {order} did not come up:\n{self._log.read_text()[-4000:]}"
        return answer

    def _listen(self):
        for line in self.process.stdout:
            self._answers.put(line.strip())
        self._answers.put("")


def write_settings(path, settings):
    """Write Hadoop's XML."""
    properties = "".join(
        f"  <property><name>{escape(name)}</name><value>{escape(value)}</value></property>\n"
        for name, value in settings.items()
    )
    Path(path).write_text(f'<?xml version="1.0"?>\n<configuration>\n{properties}</configuration>\n')


def _java():
    home = os.environ.get("JAVA_HOME")
    return os.path.join(home, "bin", "java") if home else "java"

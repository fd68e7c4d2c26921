"""One Spark application on a host of a `HostCluster` that runs one function after another: its executors stay warm.

application = Application(cluster)
application.run(train, args)  # returns `train(spark, args)`
application.close()
"""

import time

import cloudpickle

from tests.support.host_cluster import outcome_of, result_of


class Application:
    """A driver's program on the first host.

    Parameters
    ----------
    cluster : tests.support.host_cluster.HostCluster
        The hosts.
    seconds : float
        After which it is killed.
    settings : dict of str to str, optional
        Spark's, besides those of all programs.
    """

    def __init__(self, cluster, seconds=4 * 3600, settings=None):
        self._directory = cluster.shared / f"application-{time.monotonic_ns()}"
        self._directory.mkdir()
        self._asked = 0
        self._driver = cluster.start(_serve, self._directory, seconds=seconds, settings=settings)
        self._driver.wait_for_path(self._directory / "serving")

    @property
    def output(self):
        """What it has written, with what its nodes have written."""
        return self._driver.output

    def ask(self, function, *arguments):
        """Have it call a function with its Spark session and these arguments; return the path of the answer."""
        path = self._directory / f"{self._asked}.new"
        self._asked += 1
        path.write_bytes(cloudpickle.dumps((function, arguments)))
        path.rename(path.with_suffix(".asked"))
        return path.with_suffix(".answer")

    def wait_for_path(self, path, seconds):
        """Wait until a file exists."""
        self._driver.wait_for_path(path, seconds)

    def answer(self, path, seconds):
        """Wait for an answer; return what the function returned, or raise what it raised."""
        self.wait_for_path(path, seconds)
        return result_of(path.read_bytes())

    def run(self, function, *arguments, seconds=200):
        """Have it call a function; return what that returns, or raise what it raises."""
        return self.answer(self.ask(function, *arguments), seconds)

    def close(self):
        """Wait for its end."""
        (self._directory / "end").touch()
        assert not self._driver.wait(), self.output[-3000:]


def _serve(spark, directory):
    (directory / "serving").touch()
    while not (directory / "end").exists():
        for path in directory.glob("*.asked"):
            function, arguments = cloudpickle.loads(path.read_bytes())
            path.unlink()
            new = path.with_suffix(".new")
            new.write_bytes(outcome_of(function, spark, *arguments))
            new.rename(path.with_suffix(".answer"))
        time.sleep(0.05)

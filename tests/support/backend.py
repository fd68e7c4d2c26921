"""A backend without Spark: it grants slots and listens on loopback; nodes and feeding jobs are given to it.

The tests of the driver give it nodes that follow a script (`tests.support.scripted`), those of data threads that run
programs (`tests.support.inprocess`), those of failures real processes (`tests.support.local_cluster`), and the
benchmark of scale processes that each play fifty nodes.
"""

import tensorflowonspark as tfos
from tensorflowonspark import transport
from tensorflowonspark.driver.spark.slots import ApplicationSlots


class PlayedStage:
    """In place of Spark's barrier stage: it ends when all nodes are placed, or when one can't be.

    Parameters
    ----------
    placed : sequence of threading.Event
        One for each node, or for each group of nodes.
    problems : list of str
        Why nodes can't be placed.
    """

    def __init__(self, placed, problems=()):
        self._placed = placed
        self._problems = list(problems)

    @property
    def ended(self):
        return bool(self._problems) or all(event.is_set() for event in self._placed)

    def problems(self):
        return self._problems

    def data_problem(self):
        return None

    def cancel(self):
        pass

    def wait(self, seconds):
        pass


class LoopbackBackend:
    """In place of Spark.

    Parameters
    ----------
    place : callable
        Takes a plan and a function to call at the end of the stage; starts the nodes, returns the stage.
    submit : callable, optional
        Takes the function of the job's tasks, the partitions, a function to call at the job's end and, where nodes are
        restarted alone, one that tells whether a partition is computed; returns the job.
    slots : int, optional
        How many task slots it has; by default as many as are asked for.
    """

    shares_terminal = True

    def __init__(self, place, submit=None, slots=None):
        self._place = place
        self._submit = submit
        self.slots = slots
        self.preempted = set()

    def hadoop_settings(self):
        return {}

    def find_slots(self, needed, wanted, timeout, had=0):
        return wanted if self.slots is None else min(wanted, self.slots)

    def reservation(self):
        return ApplicationSlots(None).reservation()

    def reserve_slots(self, request):
        return self.find_slots(request.needed, request.wanted, request.timeout, request.had)

    def release_slots(self):
        pass

    def give_up_host(self, executor):
        raise AssertionError(f"the host of executor {executor!r} answers")

    def was_preempted(self, executor):
        return executor in self.preempted

    def wants_tls(self):
        return False

    def driver_host(self):
        return "127.0.0.1", "127.0.0.1"

    def listen(self, credentials, on_channel, ports):
        server = transport.Server(("127.0.0.1", 0), credentials, on_channel=on_channel)
        return server, ("127.0.0.1", server.port)

    def place(self, plan, data, on_end):
        return self._place(plan, on_end)

    def submit(self, function, data, description, on_end, chosen=None):
        if chosen is None:
            return self._submit(function, data, on_end)
        return self._submit(function, data, on_end, chosen)


class Session:
    """What a cluster needs of a Spark session before its backend is exchanged."""

    sparkContext = None  # noqa: N815 - pyspark's name


def cluster_on(backend, program=None, args=None, **settings):
    """Return a cluster that a backend carries; it is not started yet."""
    cluster = tfos.Cluster(Session(), program or (lambda args, ctx: None), args, **settings)
    return tfos.Cluster._on_backend(backend, cluster._config)

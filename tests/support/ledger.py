"""An application without Spark whose clusters of scripted nodes share its slots, and threads that ask for slots."""

from threading import Thread

from tensorflowonspark.driver.spark.ledger import SlotRequest
from tensorflowonspark.driver.spark.slots import ApplicationSlots
from tests.support.scripted import ScriptedBackend


def ask(name, needed, wanted=None, *, of):
    """Return a request for some of so many slots."""
    return SlotRequest(name, needed, wanted or needed, lambda: of)


def in_thread(function, *arguments):
    """Return a thread that calls a function."""
    thread = Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread


class Application:
    """What a search needs of a Spark session: so many slots, for clusters of scripted nodes."""

    version = "4"

    def __init__(self, slots):
        self.sparkContext = self  # pyspark's name
        self._jsc = self  # it runs
        self.slots = Slots(self, slots)

    @property
    def ledger(self):
        return self.slots.ledger

    def backend(self, *scripts, problems=()):
        """Return the backend of one cluster."""
        return _Sharing(self.slots, *scripts, problems=problems)

    def check(self):
        """Fail if there are more nodes than slots."""
        assert sum(each.count for each in self.ledger.held()) <= self.slots.capacity()

    def setLocalProperty(self, name, value):  # noqa: N802 - pyspark's name
        """Do nothing: no thread inherits it here."""

    def getLocalProperty(self, name):  # noqa: N802 - pyspark's name
        return None


class Slots(ApplicationSlots):
    """The slots of an application without Spark."""

    def __init__(self, application, count):
        super().__init__(application)
        self.number = count

    def _is_dynamic(self):
        return False

    def _count(self, profile):
        return self.number


class _Sharing(ScriptedBackend):
    def __init__(self, slots, *scripts, problems=()):
        super().__init__(*scripts, problems=problems)
        self._slots_of_all = slots
        self._lease = None

    def reserve_slots(self, request):
        if self._lease is None:
            self._lease = self._slots_of_all.acquire(request.name, request.needed, request.wanted, request.check)
        return self._lease.count

    def release_slots(self):
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release()

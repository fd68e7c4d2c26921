"""The Python stacks of a node, for the driver: the node sends them, or else a signal has it write them to a file."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

from tensorflowonspark.messages import Stacks, StacksRequest
from tensorflowonspark.node.stacks import STACKS_SIGNAL, stacks_file
from tensorflowonspark.supervisor.node_process import NodeProcess, has_ended

_ANSWER_SECONDS = 1.0  # for the node to send its stacks; native code may hold Python's lock
_WRITE_SECONDS = 1.5  # for the signal's handler to write them
_SETTLED_SECONDS = 0.2  # without a further byte, after which it has written all
_POLL_SECONDS = 0.05
_HELD = "The node could not send its stacks: native code holds Python's lock. They are of a signal's handler."


class StackRequests:
    """Answers the driver's requests for the stacks of a node, each in a thread of its own."""

    def __init__(self, node: NodeProcess, send: Callable[[Stacks], object]) -> None:
        self._node = node
        self._send = send
        self._answered: dict[int, Event] = {}  # by the number of the request

    def begin(self, request: StacksRequest) -> None:
        """Ask the node; answer in its place if it can't."""
        self._answered[request.number] = answered = Event()
        Thread(target=self._answer, args=(request, answered), daemon=True).start()

    def receive(self, answer: Stacks) -> None:
        """Take note of the node's answer, which the supervisor sends on."""
        if (answered := self._answered.get(answer.number)) is not None:
            answered.set()

    def _answer(self, request: StacksRequest, answered: Event) -> None:
        try:
            self._node.send(request)
            if not answered.wait(_ANSWER_SECONDS):
                self._send(self._find(request.number))
        finally:
            del self._answered[request.number]

    def _find(self, number: int) -> Stacks:
        """Return the stacks that the signal's handler writes, or why there are none."""
        stopped = self._node.liveness.stopped()
        if has_ended(self._node.pid):
            return Stacks(number, problem="its process has ended")
        if stopped is not None:
            return Stacks(number, problem=stopped.reason)
        file = stacks_file(self._node.private)
        if not _can_write_stacks(self._node.pid, file):
            return Stacks(number, problem="it does not answer, and has no handler of the signal (yet)")
        try:
            text = self._written(file)
        except OSError as error:
            return Stacks(number, problem=f"{file.name} in its directory can't be read ({error.strerror})")
        if not text:
            return Stacks(
                number, problem="it answers neither a message nor a signal: the kernel may hold its main thread"
            )
        return Stacks(number, f"{_HELD}\n\n{text}")

    def _written(self, file: Path) -> str:
        """Send the signal; return what the handler writes."""
        os.truncate(file, 0)  # the handler appends
        with suppress(ProcessLookupError):
            os.kill(self._node.pid, STACKS_SIGNAL)
        begin = changed = time.monotonic()
        size = 0
        while (now := time.monotonic()) < begin + _WRITE_SECONDS and not (size and now > changed + _SETTLED_SECONDS):
            time.sleep(_POLL_SECONDS)
            if (found := file.stat().st_size) != size:
                size, changed = found, time.monotonic()
        return file.read_text(errors="replace")


def _can_write_stacks(pid: int, file: Path) -> bool:
    """Return whether `STACKS_SIGNAL` is safe to send: else it would end the process, or the stacks go elsewhere."""
    caught, is_open = False, False
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "SigCgt":
                caught = bool(int(value, 16) >> (STACKS_SIGNAL - 1) & 1)
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # it is closed meanwhile
                is_open = is_open or each.readlink() == file
    return caught and is_open

"""TensorBoard beside the chief, in a process that ends with its supervisor.

Run as ``python -m tensorflowonspark.supervisor.tensorboard``, the module serves a log directory and sends its URL to
the supervisor, or the reason of a failure.
"""

import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from threading import Thread

from tensorflowonspark.messages import Lines, TensorBoardUp
from tensorflowonspark.processes import kill_group, parent_pipe, start
from tensorflowonspark.settings import port_range
from tensorflowonspark.supervisor.supervisor_client import NodeAssignment

_TRIES = 3  # of free ports


class TensorBoard:
    """Starts TensorBoard.

    Files that it can't read in place are copied to the local directory `copies`. It is killed some time after this
    process was stopped. `report` is called once, in a thread, with the message for the driver.
    """

    def __init__(
        self, assignment: NodeAssignment, copies: str, report: Callable[[TensorBoardUp | Lines], None]
    ) -> None:
        config = assignment.config
        self._process, self._pipe = start(
            "tensorflowonspark.supervisor.tensorboard", os.environ, orphan_timeout=config.heartbeat_timeout
        )
        self._report = report
        settings = config.tensorboard, assignment.host, copies, assignment.hadoop, config.ports
        Thread(target=self._talk, args=(settings,), daemon=True).start()

    def _talk(self, settings: tuple[object, ...]) -> None:
        with suppress(EOFError, OSError):
            self._pipe.send(settings)  # which the process reads once it is up
            url, problem = self._pipe.recv()
            self._report(TensorBoardUp(url) if url else Lines((f"TensorBoard did not start: {problem}",)))

    def close(self) -> None:
        """End the process."""
        kill_group(self._process.pid)
        self._process.wait()


def _serve(log_directory: str, host: str, ports: str | None) -> str:
    """Start TensorBoard in this process and return its URL.

    The port is ``TENSORBOARD_PORT``, or by default a free one of those of `port_range`. TensorBoard takes it a second
    or more after this process has seen that it is free. If its node has taken it meanwhile, the next one is tried.
    """
    from tensorboard import program

    given = os.environ.get("TENSORBOARD_PORT")
    for tries_left in reversed(range(1 if given else _TRIES)):
        port = given or str(_free_port(host, port_range(ports)))
        server = program.TensorBoard()
        try:
            server.configure(argv=["tensorboard", "--logdir", log_directory, "--host", host, "--port", port])
            return str(server.launch())
        except SystemExit as error:  # it has printed why
            if not tries_left:
                text = f"it ended with exit code {error.code} at port {port} of {host}: see the executor's stderr"
                raise OSError(text) from None
    raise AssertionError


def _free_port(host: str, ports: range) -> int:
    for port in ports:
        with suppress(OSError):
            socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
            return port
    raise OSError(f"no port of {ports[0]} to {ports[-1]} is free (ports)")


def _main() -> None:
    from tensorflowonspark import storage  # which a supervisor does not need

    pipe = parent_pipe()
    log_directory, host, copies, hadoop, ports = pipe.recv()
    storage.use(hadoop)
    try:
        if not storage.is_local(storage.file_system(log_directory)[0]):  # TensorBoard reads local files only
            storage.DirectorySync(log_directory, copies)
            log_directory = copies
        pipe.send((_serve(log_directory, host, ports), ""))
        with suppress(EOFError):
            pipe.recv()  # until the supervisor ends
    except (Exception, SystemExit) as error:  # its import may end the process
        pipe.send(("", f"{type(error).__name__}: {error}"))
    finally:
        kill_group(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    _main()

"""TensorBoard beside the chief: a process of its own that ends with its supervisor.

Run as ``python -m tensorflowonspark.supervisor.tensorboard``, it serves a log directory and sends its URL to the
supervisor, or the reason why there is none.
"""

import os
import signal
from contextlib import suppress

from tensorflowonspark import storage
from tensorflowonspark.processes import kill_group, parent_pipe

__all__ = ["serve"]


def serve(log_directory: str, host: str) -> str:
    """Start TensorBoard in this process and return its URL.

    Without a port set by ``TENSORBOARD_PORT``, it takes a free one.
    """
    from tensorboard import program

    port = os.environ.get("TENSORBOARD_PORT", "0")
    server = program.TensorBoard()
    server.configure(argv=["tensorboard", "--logdir", log_directory, "--host", host, "--port", port])
    return str(server.launch())


def _main() -> None:
    pipe = parent_pipe()
    log_directory, host, local, hadoop = pipe.recv()
    storage.use(hadoop)
    try:
        if not storage.is_local(storage.file_system(log_directory)[0]):  # TensorBoard reads files of this machine
            storage.DirectorySync(log_directory, local)
            log_directory = local
        pipe.send((serve(log_directory, host), ""))
        with suppress(EOFError):
            pipe.recv()  # until the supervisor is gone
    except (Exception, SystemExit) as error:  # TensorBoard's own errors end the process; the user wants to read them
        pipe.send(("", f"{type(error).__name__}: {error}"))
    finally:
        kill_group(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    _main()

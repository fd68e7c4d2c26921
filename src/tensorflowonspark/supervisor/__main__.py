"""Entry point of a supervisor."""

from tensorflowonspark.processes import parent_pipe
from tensorflowonspark.supervisor.supervisor import Supervisor

if __name__ == "__main__":
    pipe = parent_pipe()
    Supervisor(pipe.recv(), pipe).run()

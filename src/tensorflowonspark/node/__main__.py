"""Entry point of a node."""

from tensorflowonspark.node.main import run_node
from tensorflowonspark.processes import parent_pipe

if __name__ == "__main__":
    run_node(parent_pipe())

"""Entry of a node's process."""

from tensorflowonspark.children import parent_pipe
from tensorflowonspark.node.run import run_node

if __name__ == "__main__":
    run_node(parent_pipe())

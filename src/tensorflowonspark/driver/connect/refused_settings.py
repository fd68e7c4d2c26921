"""The settings that a cluster over Spark Connect can't have."""

from tensorflowonspark.config import ClusterConfig
from tensorflowonspark.driver.program import configure
from tensorflowonspark.errors import SpecError
from tensorflowonspark.settings import ClusterSettings


def check_settings(config: ClusterConfig, *, held: bool = False) -> None:
    """Raise `SpecError` for what a cluster over Spark Connect does not have; `held`: whose nodes hold their tasks."""
    if config.min_workers is not None:
        workers = (config.min_workers, config.spec.num_workers)
        raise SpecError(f"num_workers={workers}: over Spark Connect slots can't be counted: give a number")
    reasons = {
        ("page_port", "metrics_port"): "the driver's part runs in a task, and serves no pages: leave this out",
        ("breakpoints",): "the driver's part runs in a task, to which no terminal is attached: leave this out",
        ("ps_on_driver",): "executors can't reach the driver's machine: leave this out",
    }
    if held:
        reasons["show", "log_dir", "grace", "log_format", "report"] = (
            "the nodes that `run` makes end with its job, and their output is in the executors' log: leave this out, "
            "or give nodes=Nodes(hold=False)"
        )
    elif config.log_dir is not None and "://" not in config.log_dir:  # file:// is one that all machines have
        reasons["log_dir",] = "the driver's part runs in a task, on another machine: leave this out, or name a URL"
    default = configure(config.program, {**vars(ClusterSettings()), **vars(config.spec)})
    for names, reason in reasons.items():
        differing = [name for name in names if getattr(config, name) != getattr(default, name)]
        if differing:
            shown = ", ".join(f"{name}={getattr(config, name)!r}" for name in differing)
            raise SpecError(f"{shown}: over Spark Connect {reason}")
    if config.restarts_nodes:
        raise SpecError(
            "restarts=RestartPolicy(scope='node'): over Spark Connect the client starts the nodes, and only while a "
            "call waits: leave out scope, or use a session of the application's own"
        )

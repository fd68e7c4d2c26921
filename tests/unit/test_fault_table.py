"""What is done to each process, and what comes of it: the table in docs/failures.md, and the tests of what it says."""

import ast
import re
from pathlib import Path

import pytest

import tensorflowonspark as tfos
from tests.support.paths import DOCS, TESTS

# Process, what happens to it, what follows, the test that shows it.
FAULTS = [
    (
        "driver",
        "forks (`os.fork`, `multiprocessing`)",
        "the child has no part in the cluster: its end ends nothing, and its calls raise `ClusterError`",
        "unit/driver/test_forked_driver.py::test_a_forked_child_of_the_driver_does_not_end_the_cluster",
    ),
    (
        "driver",
        "is killed while a forked child lives on, with copies of its connections",
        "the nodes end within 20 s, not at once",
        "cluster/failures/test_fault_table.py::test_the_driver_is_gone_or_stopped",
    ),
    (
        "driver",
        "SIGINT, SIGTERM, SIGKILL",
        "the nodes end within milliseconds",
        "cluster/failures/test_failures.py::test_the_driver_dies",
    ),
    (
        "driver",
        "is stopped (Ctrl-Z, SIGSTOP)",
        "the nodes end after 20 s; the driver that goes on raises `NodeError` (`lost`), or restarts",
        "cluster/failures/test_fault_table.py::test_the_driver_is_gone_or_stopped",
    ),
    (
        "driver",
        "its terminal is not read (Ctrl-S, `| less`, a full pipe)",
        "training goes on; lines are dropped, and counted where the output goes on",
        "unit/driver/test_console.py::test_a_terminal_that_nobody_reads_stops_nothing",
    ),
    (
        "driver",
        "its terminal is gone (`| head`)",
        "training goes on without output",
        "unit/driver/test_cluster.py::test_output_that_can_not_be_shown_does_no_harm",
    ),
    (
        "any",
        "the wall clock jumps",
        "nothing: all times are of the monotonic clock; certificates allow a day's difference between hosts",
        "unit/test_fault_table.py::test_nobody_waits_by_the_wall_clock",
    ),
    (
        "Spark task",
        "fails or is killed while it feeds",
        "Spark repeats it; rows of attempts that do not count are dropped",
        "unit/feed/test_exactly_once.py",
    ),
    (
        "Spark task",
        "its job is cancelled while it feeds",
        "`FeedError`",
        "cluster/failures/test_causes.py::test_a_job_that_is_cancelled",
    ),
    (
        "Spark task",
        "loses its node",
        "it asks the driver; the call raises the node's own error, with its traceback",
        "cluster/failures/test_causes.py::test_a_node_fails_while_it_is_fed",
    ),
    (
        "supervisor",
        "SIGKILL",
        "its node ends with it: `NodeError` (`lost`)",
        "cluster/failures/test_failures.py::test_a_supervisor_that_is_killed",
    ),
    (
        "supervisor",
        "is stopped (SIGSTOP)",
        "it is killed after `silence_timeout`, and its node with it",
        "cluster/supervisor/test_leash.py",
    ),
    (
        "supervisor",
        "the executor's log is not read",
        "training goes on; lines are dropped there, and counted",
        "unit/supervisor/test_output.py::test_a_log_that_nobody_reads_stops_nothing",
    ),
    (
        "node",
        "forks (`os.fork`, `multiprocessing`, `preexec_fn`)",
        "the child ends where a script would end; it sends nothing in the node's name",
        "cluster/failures/test_fault_table.py::test_a_forked_child_of_a_node_speaks_for_nobody",
    ),
    (
        "node",
        "a thread raises, or calls `sys.exit`",
        "nothing but its traceback in the output",
        "cluster/failures/test_fault_table.py::test_threads_and_signals_of_a_program",
    ),
    (
        "node",
        "a thread still runs when the program returns",
        "the result counts, and the thread ends with the cluster",
        "cluster/failures/test_fault_table.py::test_threads_and_signals_of_a_program",
    ),
    (
        "node",
        "a signal that the program handles",
        "its handler is called",
        "cluster/failures/test_fault_table.py::test_threads_and_signals_of_a_program",
    ),
    (
        "node",
        "a signal that the program does not handle",
        "`NodeError` (`killed`) names it",
        "cluster/failures/test_failures.py::test_ends_are_told_apart",
    ),
    (
        "node",
        "ignores SIGTERM",
        "it is killed at the cluster's end nevertheless",
        "cluster/failures/test_fault_table.py::test_threads_and_signals_of_a_program",
    ),
    (
        "node",
        "is stopped for less than `silence_timeout`",
        "it goes on",
        "cluster/failures/test_fault_table.py::test_threads_and_signals_of_a_program",
    ),
    (
        "node",
        "is stopped (SIGSTOP, a debugger) for longer",
        "`NodeError` (`stopped`) then; sooner if a Spark task or a peer's TensorFlow loses it (20 to 30 s)",
        "cluster/failures/test_hangs.py::test_a_node_that_is_stopped",
    ),
    (
        "node",
        "is killed after its program has returned",
        "`NodeError`: its peers and inference still need it",
        "cluster/failures/test_causes.py::test_a_node_fails_while_it_answers",
    ),
    (
        "fork server",
        "SIGKILL",
        "its nodes go on; how they end is not known then",
        "cluster/forkserver/test_warm_nodes.py::test_a_node_whose_fork_server_died_first_is_still_missed",
    ),
    (
        "fork server",
        "is stopped (SIGSTOP)",
        "its nodes go on, and others start without it, a second later",
        "cluster/forkserver/test_warm_nodes.py::test_a_fork_server_that_is_stopped",
    ),
    (
        "driver",
        "may open few files (`ulimit -n`)",
        "it raises its own limit; if the hard limit is too low, an error names it",
        "unit/transport/test_shared_file.py::test_files_are_allowed_as_far_as_the_system_lets_them",
    ),
    (
        "driver",
        "strangers hold connections, with TLS or without",
        "at most 64 at a time, 10 s each; members get through",
        "unit/transport/test_hostile.py::test_more_strangers_than_the_gate_lets_wait_keep_nobody_out",
    ),
    (
        "driver",
        "its host vanishes, or its network drops everything",
        "the nodes end within 20 s",
        "unit/transport/test_transport.py::test_a_peer_that_vanishes_is_noticed",
    ),
    (
        "driver",
        "executors come late, or are replaced late",
        "it waits up to `start_timeout`, and reports its progress",
        "cluster/lifecycle/test_late_executors.py::test_slots_are_waited_for_as_long_as_they_can_come",
    ),
    (
        "Spark task",
        "a full disk, a read-only or removed spark.local.dir, `ulimit -f`, `ulimit -n`",
        "`FeedError` names the directory, the host and the limit",
        "unit/transport/test_shared_file.py::test_a_limit_of_the_host_is_named",
    ),
    (
        "supervisor",
        "can't start its node: a full disk, `ulimit -u`, `ulimit -n`",
        "`StartError` names it; nothing stays",
        "unit/supervisor/test_starting.py::test_what_keeps_a_node_from_starting_is_reported",
    ),
    (
        "node",
        "a full disk while it keeps rows",
        "`FeedError` names the directory",
        "unit/node/test_cache.py::test_a_disk_that_is_full_is_named",
    ),
    (
        "node",
        "is fed more partitions than it may open files (`ulimit -n`)",
        "nothing: mapped files hold none open",
        "unit/transport/test_shared_file.py::test_more_files_are_mapped_than_may_be_open",
    ),
    (
        "node",
        "may map no more memory (`ulimit -v`, vm.max_map_count)",
        "`FeedError` names the limit",
        "unit/transport/test_shared_file.py::test_a_process_that_may_map_no_more_says_so",
    ),
    (
        "node",
        "closes its standard output",
        "nothing",
        "cluster/failures/test_failures.py::test_a_program_may_close_its_output",
    ),
    (
        "node",
        "closes the connection to its supervisor (`os.closerange`)",
        "`NodeError` (`exited`) names it",
        "cluster/failures/test_failures.py::test_ends_are_told_apart",
    ),
    (
        "node",
        "starts processes in a session of their own (`setsid`, daemons)",
        "they end with it",
        "cluster/failures/test_failures.py::test_processes_that_left_the_nodes_group_go_with_it",
    ),
    (
        "node",
        "raises an exception without a text, or of 50 MB",
        "`NodeError` with the beginning of the text, and the traceback",
        "cluster/failures/test_failures.py::test_an_exception_of_any_kind_reaches_the_driver",
    ),
    (
        "node",
        "a bit of its newest checkpoint has flipped",
        "all workers go on from the one before, with a warning",
        "unit/node/test_checkpoints.py::test_a_checkpoint_with_a_flipped_bit_gives_way_to_the_one_before",
    ),
    (
        "any",
        "a slow network",
        "nothing: it is waited for",
        "unit/transport/test_transport.py::test_a_slow_network_is_waited_for",
    ),
    (
        "any",
        "a small /dev/shm",
        "nothing: no file is kept there",
        "unit/transport/test_shared_file.py::test_a_nameless_file_is_opened",
    ),
]


def table():
    """Return the table as it is in the documentation."""
    rows = [f"| {process} | {fault} | {follows} |" for process, fault, follows, _ in FAULTS]
    return "\n".join(["| process | what happens to it | what follows |", "|---|---|---|", *rows])


def test_the_documentation_has_the_table():
    assert table() in (DOCS / "failures.md").read_text()


@pytest.mark.parametrize("test", sorted({test for *_, test in FAULTS}))
def test_each_row_has_its_test(test):
    path, _, name = test.partition("::")
    assert f"def {name}(" in (TESTS / path).read_text() if name else (TESTS / path).exists()


# ---- clocks

_WALL_CLOCK = re.compile(r"\b(?:time\.time|time\.time_ns|datetime\.now|datetime\.utcnow|datetime\.today)$")


def test_nobody_waits_by_the_wall_clock():
    package = Path(tfos.__file__).parent
    callers = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and _WALL_CLOCK.search(ast.unparse(node.func))
    }
    assert callers == {"transport/credentials.py"}  # since when a certificate is valid

"""The table of faults in docs/failures.md, and the test of each of its rows."""

import ast
import re
from pathlib import Path

import pytest

import tensorflowonspark as tfos
from tests.support.paths import DOCS, TESTS

PROCESSES = ["driver", "executor", "Spark task", "supervisor", "node", "fork server", "any"]
# Process, what happens to it, what follows, the test that shows it.
FAULTS = [
    (
        "driver",
        "forks (`os.fork`, `multiprocessing`)",
        "the child is not part of the cluster: its exit has no effect, and its calls raise `ClusterError`",
        "unit/driver/test_forked_driver.py::test_a_forked_child_of_the_driver_does_not_end_the_cluster",
    ),
    (
        "driver",
        "is killed while a forked child with copies of its connections still runs",
        "the nodes end within 20 s, not immediately",
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
        "the nodes wait for it, and go on with it when it continues",
        "cluster/failures/test_fault_table.py::test_the_driver_is_gone_or_stopped",
    ),
    (
        "driver",
        "its terminal is not read (Ctrl-S, a pipe to `less`, a full pipe)",
        "training continues; lines are dropped, and counted where the output resumes",
        "unit/driver/test_console.py::test_a_terminal_that_nobody_reads_stops_nothing",
    ),
    (
        "driver",
        "its terminal is gone (a pipe to `head`)",
        "training continues without output",
        "unit/driver/test_cluster.py::test_output_that_can_not_be_shown_does_no_harm",
    ),
    (
        "driver",
        "the file system of `log_dir` fails or is full",
        "training continues; one warning, and at the end one with the local directory of what could not be copied",
        "unit/driver/test_log_files.py::test_a_file_system_that_goes_away_is_reported_and_the_files_are_kept",
    ),
    (
        "driver",
        "the receiver of its [spans](metrics.md#spans-of-opentelemetry) is down or silent",
        "training continues; the end waits for it, five seconds at most",
        "unit/driver/test_spans.py::test_the_end_does_not_wait_long_for_a_receiver_that_does_not_answer",
    ),
    (
        "any",
        "the wall clock jumps",
        "none: all times use the monotonic clock; certificates allow a day's difference between hosts",
        "unit/test_fault_table.py::test_nobody_waits_by_the_wall_clock",
    ),
    (
        "executor",
        "gives notice: Spark decommissions it, or a file or server of its host says so",
        "all workers save after the same step, and a restart, which is not charged, goes on without it",
        "hosts/test_notices.py::test_a_training_leaves_a_host_that_goes",
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
        "Spark task",
        "the process of a key in `fit_each` ends, hangs or is killed",
        "the key's row has the reason (after `timeout=`, if it hangs); the other keys go on",
        "cluster/frames/test_each.py::test_keys_that_fail_are_rows_with_an_error_and_the_others_go_on",
    ),
    (
        "Spark task",
        "loses its executor in `fit_each`",
        "Spark repeats it; with `output=` no key is trained again but the one that it trained",
        "cluster/frames/test_each.py::test_an_executor_that_is_killed_in_the_midst_costs_the_keys_that_it_trained",
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
        "it is killed after `heartbeat_timeout`, and its node with it",
        "cluster/supervisor/test_orphan_guard.py",
    ),
    (
        "supervisor",
        "the executor's log is not read",
        "training continues; lines are dropped there, and counted",
        "unit/supervisor/test_output.py::test_a_log_that_nobody_reads_stops_nothing",
    ),
    (
        "node",
        "forks (`os.fork`, `multiprocessing`, `preexec_fn`)",
        "the child ends where a script would end, and sends no messages as the node",
        "cluster/failures/test_fault_table.py::test_a_forked_child_of_a_node_never_acts_for_the_node",
    ),
    (
        "node",
        "a thread raises, or calls `sys.exit`",
        "none, except its traceback in the output",
        "cluster/failures/test_fault_table.py::test_threads_and_signals_of_a_program",
    ),
    (
        "node",
        "has a running thread when the program returns",
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
        "cluster/failures/test_failures.py::test_ends_are_distinguished",
    ),
    (
        "node",
        "ignores SIGTERM",
        "it is killed at the end of the cluster",
        "cluster/failures/test_fault_table.py::test_threads_and_signals_of_a_program",
    ),
    (
        "node",
        "is stopped for less than `heartbeat_timeout`",
        "it continues",
        "cluster/failures/test_fault_table.py::test_threads_and_signals_of_a_program",
    ),
    (
        "node",
        "is stopped (SIGSTOP, a debugger) for longer",
        "`NodeError` (`stopped`) at that time",
        "cluster/failures/test_hangs.py::test_a_node_that_is_stopped",
    ),
    (
        "node",
        "is killed after its program has returned",
        "`NodeError`, because its peers still need it, or inference if no other node answers it",
        "cluster/failures/test_causes.py::test_a_node_fails_while_it_answers",
    ),
    (
        "node",
        "is lost while it answers inference, after all programs have returned",
        "another node that answers gets the rows that have no results yet",
        "cluster/feed/test_inference.py::test_rows_of_a_node_that_is_killed_go_to_another_one",
    ),
    (
        "fork server",
        "SIGKILL",
        "its nodes continue; their exit status is unknown",
        "cluster/forkserver/test_warm_nodes.py::test_a_node_whose_fork_server_died_first_is_still_missed",
    ),
    (
        "fork server",
        "is stopped (SIGSTOP)",
        "its nodes continue; other nodes start without it, one second later",
        "cluster/forkserver/test_warm_nodes.py::test_a_fork_server_that_is_stopped",
    ),
    (
        "driver",
        "has a low limit of open files (`ulimit -n`)",
        "it raises its own limit; if the hard limit is too low, an error names it",
        "unit/transport/test_shared_file.py::test_files_are_allowed_as_far_as_the_system_lets_them",
    ),
    (
        "driver",
        "unauthenticated peers hold connections, with or without TLS",
        "at most 64 at a time, 10 s each; nodes and tasks still connect",
        "unit/transport/test_hostile.py::test_more_unauthenticated_peers_than_may_wait_keep_no_other_out",
    ),
    (
        "driver",
        "its host vanishes, or its network drops all packets",
        "the nodes end after `heartbeat_timeout`",
        "unit/transport/test_vanished_host.py::test_who_waits_for_a_host_that_vanishes_notices",
    ),
    (
        "driver",
        "executors start late, or are replaced late",
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
        "`StartError` names it; no process or file remains",
        "unit/supervisor/test_starting.py::test_what_keeps_a_node_from_starting_is_reported",
    ),
    (
        "node",
        "a full disk while it caches rows",
        "`FeedError` names the directory",
        "unit/node/test_cache.py::test_a_disk_that_is_full_is_named",
    ),
    (
        "node",
        "receives more partitions than its limit of open files (`ulimit -n`)",
        "none: mapped files need no open descriptor",
        "unit/transport/test_shared_file.py::test_more_files_are_mapped_than_may_be_open",
    ),
    (
        "node",
        "reaches its limit of mapped memory (`ulimit -v`, vm.max_map_count)",
        "`FeedError` names the limit",
        "unit/transport/test_shared_file.py::test_a_process_that_may_map_no_more_reports_it",
    ),
    (
        "node",
        "closes its standard output",
        "none",
        "cluster/failures/test_failures.py::test_a_program_may_close_its_output",
    ),
    (
        "node",
        "closes the connection to its supervisor (`os.closerange`)",
        "`NodeError` (`exited`) names it",
        "cluster/failures/test_failures.py::test_ends_are_distinguished",
    ),
    (
        "node",
        "starts processes in a session of their own (`setsid`, daemons)",
        "they end with it",
        "cluster/failures/test_failures.py::test_processes_that_left_the_nodes_group_go_with_it",
    ),
    (
        "node",
        "raises an exception without text, or with 50 MB of text",
        "`NodeError` with the start of the text, and the traceback",
        "cluster/failures/test_failures.py::test_an_exception_of_any_kind_reaches_the_driver",
    ),
    (
        "node",
        "a bit of its newest checkpoint has flipped",
        "all workers continue from the previous one, with a warning",
        "unit/node/test_checkpoints.py::test_a_checkpoint_with_a_flipped_bit_gives_way_to_the_one_before",
    ),
    (
        "executor",
        "dies",
        "its supervisors stop their nodes: `NodeError` (`executor_lost`). Spark starts another, which `restarts` uses",
        "cluster/restarts/test_restarts.py::test_an_executor_that_dies_is_replaced",
    ),
    (
        "node",
        "is killed while it evaluates checkpoints ([an evaluator](checkpoints.md#validation-beside-the-training))",
        "as of any node; after a restart it goes on with the epochs that have no values",
        "cluster/training/test_evaluator.py::test_an_evaluator_that_is_slow_and_killed_evaluates_each_epoch_once",
    ),
    (
        "node",
        "is slow (a straggler)",
        "none: the others wait, however long it computes; the line at the end names it",
        "cluster/training/test_advice.py::test_one_slow_worker_bounds_all_that_train_in_step",
    ),
    (
        "node",
        "dies, or hangs, while workers average their weights in rounds ([local SGD](local-sgd.md))",
        "the others train on without it, if the chief and `min_workers` are left",
        "cluster/local_sgd/test_lost_workers.py::test_a_killed_worker_is_left_out_and_nobody_is_restarted",
    ),
    (
        "node",
        "is an evaluator whose store fails",
        "a warning, and it is tried again for a minute; then as of any node that raises",
        "cluster/training/test_evaluator.py::test_a_store_that_fails_is_tried_again",
    ),
    (
        "node",
        "dies while it writes a checkpoint",
        "the previous checkpoint remains in effect",
        "cluster/restarts/test_resuming.py::test_a_node_that_is_killed_while_it_uploads_leaves_the_one_before",
    ),
    (
        "node",
        "dies while the directory of its checkpoints can't be reached",
        "with [copies](checkpoints.md#copies-on-other-hosts) all workers continue from the newest one; else the "
        "restart fails, with the directory's error",
        "cluster/restarts/test_copies.py::test_a_restart_goes_on_from_copies_if_the_directory_cant_be_reached",
    ),
    (
        "any",
        "the network breaks for some seconds",
        "none, if it is whole again within the times in [Networks](network.md#breaks-of-the-network)",
        "hosts/test_cuts.py::test_a_cut_is_outlived_or_the_error_names_the_host",
    ),
    (
        "any",
        "a slow network",
        "none: the cluster waits for it",
        "unit/transport/test_transport.py::test_a_slow_network_is_waited_for",
    ),
    (
        "any",
        "a small /dev/shm",
        "none: no files are stored there",
        "unit/transport/test_shared_file.py::test_a_nameless_file_is_opened",
    ),
]


def table():
    """Return the table as it is in the documentation."""
    faults = sorted(FAULTS, key=lambda fault: PROCESSES.index(fault[0]))
    rows = [f"| {process} | {fault} | {follows} |" for process, fault, follows, _ in faults]
    return "\n".join(["| process | fault | consequence |", "|---|---|---|", *rows])


def test_the_documentation_has_the_table():
    assert table() in (DOCS / "failures.md").read_text()


@pytest.mark.parametrize("test", sorted({test for *_, test in FAULTS}))
def test_each_row_has_its_test(test):
    path, _, name = test.partition("::")
    assert f"def {name}(" in (TESTS / path).read_text() if name else (TESTS / path).exists()


# ---- clocks

_WALL_CLOCK = r"\b(?:time\.time|time\.time_ns|datetime\.now|datetime\.utcnow|datetime\.today)"


def test_nobody_waits_by_the_wall_clock():
    package = Path(tfos.__file__).parent
    callers = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if re.search(_WALL_CLOCK, source := path.read_text())
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and re.search(f"{_WALL_CLOCK}$", ast.unparse(node.func))
    }
    assert callers == {
        "cli/class_archive.py",  # since when an archive of classes is not used
        "node/run_record.py",  # when a manifest was written
        "node/save_points.py",  # until when a host stays
        "supervisor/host_notices.py",  # the time that a notice names
        "node/feed/kept.py",  # whether a file is so young that it may be written again
        "transport/credentials.py",  # since when a certificate is valid
        "driver/console.py",  # when lines and failures came
        "driver/feed/session.py",  # when a feed began, for spans
        "driver/metrics/event_log.py",  # when epochs ended
        "driver/metrics/metrics_store.py",  # the times of curves
        "driver/metrics/phases.py",  # and of first steps and saves
        "driver/metrics/spans.py",  # and of a run
        "driver/run_log.py",  # as MLflow does
        "driver/spark/lost_executors.py",  # which executors Spark has lost within some seconds
        "keras/shared_paths.py",  # which files others have written since this process began
        "keras/waiting.py",  # as TensorFlow's graph does; a clock that is set falsifies one share of waiting
    }

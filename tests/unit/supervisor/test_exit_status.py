import signal

import pytest

from tensorflowonspark.errors import FailureKind
from tensorflowonspark.supervisor.exit_status import explain, out_of_memory_kills


@pytest.mark.parametrize(
    ("code", "kills", "kind", "words"),
    [
        (1, 0, FailureKind.EXITED, "exit code 1"),
        (0, 0, FailureKind.EXITED, "exit code 0 before its program did"),
        (-signal.SIGKILL, 1, FailureKind.OUT_OF_MEMORY, "ran out of memory"),
        (-signal.SIGKILL, 0, FailureKind.KILLED, "SIGKILL"),
        (-signal.SIGSEGV, 0, FailureKind.KILLED, "SIGSEGV"),
        (-signal.SIGSEGV, 1, FailureKind.KILLED, "SIGSEGV"),
    ],
)
def test_each_end_has_its_name_and_an_advice(code, kills, kind, words):
    found, reason, advice = explain(code, kills)
    assert found is kind
    assert words in reason
    assert advice


@pytest.mark.parametrize(
    ("group", "file", "text"),
    [
        ("0::/app", "sys/fs/cgroup/app/memory.events", "low 0\noom 4\noom_kill 3\n"),
        ("0::/app", "sys/fs/cgroup/memory.events", "oom_kill 3\n"),
        ("5:cpu:/\n4:memory:/app", "sys/fs/cgroup/memory/app/memory.oom_control", "under_oom 0\noom_kill 3\n"),
        ("0::/", "proc/vmstat", "nr_free_pages 1\noom_kill 3\n"),
    ],
)
def test_kills_are_counted_where_the_kernel_counts_them(tmp_path, group, file, text):
    for name, content in (("proc/self/cgroup", f"{group}\n"), (file, text)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert out_of_memory_kills(tmp_path) == 3


def test_where_nothing_counts_there_are_none(tmp_path):
    assert out_of_memory_kills(tmp_path) == 0


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (3, "its process ended with exit code 3 after its program had returned"),
        (-signal.SIGKILL, "its process was ended by SIGKILL after its program had returned"),
    ],
)
def test_an_end_after_the_program_has_returned(code, words):
    assert explain(code, 0, returned=True)[1] == words


def test_a_process_that_jax_has_ended_is_a_consequence():
    output = "F1124 client.h:80] Terminating process because the JAX distributed service detected fatal errors. This"
    kind, reason, _ = explain(-signal.SIGABRT, 0, output=output)
    assert (kind, "first worker" in reason) == (FailureKind.PEER_LOST, True)
    assert explain(-signal.SIGABRT, 0, output="another crash")[0] is FailureKind.KILLED

"""Nodes that are started again alone: the others keep their processes, and no row is lost or seen twice."""

import os
import random
import signal
import time
from contextlib import suppress
from threading import Thread

import psutil
import pytest

import tensorflowonspark as tfos
from tensorflowonspark.driver.feed.job import FeedRequest
from tensorflowonspark.node.collectives import NodeCollectives
from tensorflowonspark.restart_policy import RestartPolicy
from tests.support.inprocess import partitions_of
from tests.support.local_cluster import local_cluster
from tests.support.processes import has_ended, node_of
from tests.support.programs import wait_for

local = pytest.mark.masters("local")
alone = RestartPolicy(3, backoff=0.1, scope="node")
# With number 10, a node was lost while another one came up again, and its rows never came.
_DRAWS = range(int(os.environ["TFOS_TEST_DRAWS"])) if "TFOS_TEST_DRAWS" in os.environ else (0, 10)


def pids(cluster):
    return {str(node.role): node.pid for node in cluster.nodes}


def taken_rows(batch):
    return batch["id"][batch["sample_weight"] > 0].tolist()


def passes(args, ctx):
    """Pass twice over a feed; worker 1 is killed in the first pass of its first process."""
    feed = ctx.feed()
    found = []
    for number in range(2):
        rows = []
        for step, batch in enumerate(feed.batches(15, seed=number)):
            rows += taken_rows(batch)
            if (ctx.index, ctx.attempt, number, step) == (1, 0, 0, 1):
                os.kill(os.getpid(), signal.SIGKILL)
        found.append(rows)
    return ctx.attempt, found


@pytest.mark.smoke
@local
def test_a_killed_node_alone_is_started_again_and_fed_its_rows(spark):
    with tfos.Cluster(spark, passes, num_workers=3, restarts=alone) as cluster:
        before = pids(cluster)
        cluster.train(spark.range(0, 200, 1, 6))
        after = pids(cluster)
        results = cluster.join()
        assert [node.restarts for node in cluster.nodes] == [0, 1, 0]
    assert {name for name in before if before[name] != after[name]} == {"worker:1"}
    assert {name: attempt for name, (attempt, _) in results.items()} == {"worker:0": 0, "worker:1": 1, "worker:2": 0}
    for number in range(2):
        assert sorted(row for _, found in results.values() for row in found[number]) == list(range(200))


def waits_for_files(args, ctx):
    """Leave a trace of each process, and wait for the file that ends all of them."""
    (args / f"{ctx.index}-{ctx.attempt}").write_text(str(os.getpid()))
    wait_for((args / "end").exists)
    return ctx.attempt, ctx.cluster["worker"], os.environ["TF_CONFIG"]


def strike(cluster, what, number):
    """Kill one of the processes of a node that is up."""
    info = cluster.nodes[number]
    if what in ("node", "stop"):
        node_of(cluster, number).send_signal(signal.SIGKILL if what == "node" else signal.SIGSTOP)
    else:
        os.kill({"supervisor": info.pid, "executor": info.jvm_pid}[what], signal.SIGKILL)


@pytest.mark.slow
@local
@pytest.mark.parametrize("hold", [False, True], ids=["detached", "held"])
@pytest.mark.parametrize("what", ["node", "supervisor"])
def test_the_others_keep_their_processes_and_learn_the_new_address(spark, tmp_path, what, hold):
    with tfos.Cluster(
        spark, waits_for_files, tmp_path, num_workers=2, restarts=alone, nodes=tfos.Nodes(hold=hold)
    ) as cluster:
        wait_for((tmp_path / "1-0").exists)
        victim = node_of(cluster, 1)
        before = pids(cluster)
        strike(cluster, what, 1)
        wait_for((tmp_path / "1-1").exists)
        assert has_ended(victim)
        after = pids(cluster)
        address = f"{cluster.nodes[1].host}:{cluster.nodes[1].port}"
        (tmp_path / "end").touch()
        results = cluster.join()
    assert before["worker:0"] == after["worker:0"]
    assert before["worker:1"] != after["worker:1"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0-0", "1-0", "1-1", "end"]
    assert results["worker:0"][0] == 0
    assert results["worker:0"][1][1] == results["worker:1"][1][1] == address
    assert address in results["worker:1"][2]


@pytest.mark.slow
@pytest.mark.masters("standalone")
@pytest.mark.parametrize("hold", [False, True], ids=["detached", "held"])
def test_the_executor_of_a_node_is_replaced_and_the_others_stay(spark, tmp_path, hold):
    with tfos.Cluster(
        spark, waits_for_files, tmp_path, num_workers=2, restarts=alone, nodes=tfos.Nodes(hold=hold)
    ) as cluster:
        wait_for((tmp_path / "1-0").exists)
        before = pids(cluster)
        strike(cluster, "executor", 1)
        wait_for((tmp_path / "1-1").exists)
        assert pids(cluster)["worker:0"] == before["worker:0"]
        (tmp_path / "end").touch()
        results = cluster.join()
    assert [result[0] for result in results.values()] == [0, 1]


@pytest.mark.slow
@pytest.mark.masters("local-cluster")
def test_all_nodes_of_an_executor_are_started_again_on_the_next_one(spark, tmp_path):
    with tfos.Cluster(spark, passes_on_command, tmp_path, num_workers=2, restarts=alone) as cluster:
        killer = Thread(target=lambda: (wait_for((tmp_path / "1-0").exists), strike(cluster, "executor", 1)))
        killer.start()
        cluster.train(spark.range(0, 100, 1, 4))
        killer.join()
        results = cluster.join()
    assert [attempt for attempt, _ in results.values()] == [1, 1]
    assert sorted(row for _, rows in results.values() for row in rows) == list(range(100))


def passes_on_command(args, ctx):
    """Pass over a feed, and in the first process hold still in its midst."""
    rows = []
    for batch in ctx.feed().batches(20):
        rows += taken_rows(batch)
        if ctx.attempt == 0:
            (args / f"{ctx.index}-0").touch()
            time.sleep(3600)
    return ctx.attempt, rows


@pytest.mark.slow
@local
def test_run_feeds_a_node_that_is_started_again(spark):
    def train(args, ctx):
        feed = ctx.feed()
        rows = [row for batch in feed.batches(20) for row in taken_rows(batch)]
        held_out = [row for batch in feed.validation.batches(20) for row in taken_rows(batch)]
        if ctx.is_chief and ctx.attempt == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return ctx.attempt, rows, held_out

    results = tfos.run(
        spark, train, data=tfos.Data(spark.range(100), validation=spark.range(100, 130)), num_workers=2, restarts=alone
    )
    assert [result[0] for result in results.values()] == [1, 0]
    assert sorted(row for _, rows, _ in results.values() for row in rows) == list(range(100))
    assert sorted(row for _, _, rows in results.values() for row in rows) == list(range(100, 130))


@pytest.mark.slow
@local
def test_files_that_the_nodes_read_are_read_again_by_the_new_process(spark, tmp_path):
    spark.range(0, 300, 1, 6).write.parquet(str(tmp_path / "rows"))

    def program(args, ctx):
        found = []
        for cache in ("disk", None):
            feed = ctx.read_parquet(args, cache=cache)
            found.append([row for batch in feed.batches(20) for row in taken_rows(batch)])
            if ctx.index == 1 and ctx.attempt == 0 and cache is None:
                os.kill(os.getpid(), signal.SIGKILL)
        return ctx.attempt, found

    results = tfos.run(spark, program, str(tmp_path / "rows"), num_workers=2, restarts=alone)
    assert [result[0] for result in results.values()] == [0, 1]
    for number in range(2):
        assert sorted(row for _, found in results.values() for row in found[number]) == list(range(300))


@pytest.mark.parametrize("step", [0, 1, 2])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_collective_waits_for_the_new_process_which_gets_what_was_combined_before(victim, step):
    def program(args, ctx):
        combine = NodeCollectives(ctx._setup, ctx._link).combine
        values = []
        for number in range(3):
            if (ctx.index, ctx.attempt, number) == (victim, 0, step):
                os.kill(os.getpid(), signal.SIGKILL)
            values.append(combine(f"call {number}", b"%d" % ctx.index * (10 + number), b",".join))
        return ctx.attempt, values

    with local_cluster(program, num_workers=3, restarts=alone) as cluster:
        results = cluster.join()
    expected = [b",".join(b"%d" % index * (10 + number) for index in range(3)) for number in range(3)]
    assert [values for _, values in results.values()] == [expected] * 3
    assert [attempt for attempt, _ in results.values()] == [int(index == victim) for index in range(3)]


def test_each_process_gets_the_feeds_that_are_not_over():
    def program(args, ctx):
        found = []
        for feed in ctx.feeds():
            found.append(sorted(row for batch in feed.batches(9) for row in taken_rows(batch)))
            if ctx.index == 1 and ctx.attempt == 0 and len(found) == 2:
                os.kill(os.getpid(), signal.SIGKILL)
        return found

    with local_cluster(program, num_workers=2, restarts=alone) as cluster:
        for size in (10, 20, 30):
            feed(cluster, [size, size])
        results = cluster.join()
    assert [len(found) for found in results.values()] == [3, 2]
    assert sorted(results["worker:0"][1] + results["worker:1"][0]) == list(range(40))
    assert sorted(results["worker:0"][2] + results["worker:1"][1]) == list(range(60))


def feed(cluster, sizes):
    cluster._run.run_feed(FeedRequest(partitions_of(sizes), timeout=60.0))


def test_a_node_whose_program_has_returned_is_not_started_again(caplog):
    def program(args, ctx):
        return ctx.attempt

    with local_cluster(program, num_workers=2, restarts=alone) as cluster:
        assert cluster.join() == {"worker:0": 0, "worker:1": 0}
        node_of(cluster, 1).kill()
        wait_for(lambda: "Its result is kept" in caplog.text)
        assert cluster.shutdown() == {"worker:0": 0, "worker:1": 0}


def passes_over_all(args, ctx):
    """Pass twice over each feed, not too fast."""
    found = []
    for feed in ctx.feeds():
        for number in range(2):
            rows = []
            for batch in feed.batches(9, seed=number):
                rows += taken_rows(batch)
                time.sleep(0.03)
            found.append(rows)
    return found


class SlowPartition(list):
    """Batches that arrive one after the other."""

    def __iter__(self):
        for batch in super().__iter__():
            time.sleep(0.05)
            yield batch


def strike_some(cluster, draw):
    """Let something happen to one process after the other, in whatever state it is just then."""
    for _ in range(draw.randrange(1, 5)):
        time.sleep(draw.uniform(0, 1.5))
        what, number = draw.choice(["node", "supervisor", "stop"]), draw.randrange(3)
        with suppress(psutil.Error, LookupError, OSError, TypeError):
            strike(cluster, what, number)


@pytest.mark.slow
@pytest.mark.parametrize("seed", _DRAWS)
def test_failures_at_random_lose_no_row(seed):
    """Whichever process fails when: those that end the training have each row once in each pass."""
    draw = random.Random(seed)
    sizes = [draw.randrange(60) for _ in range(8)]
    policy = RestartPolicy(20, backoff=0.05, scope="node")
    with local_cluster(
        passes_over_all, num_workers=3, restarts=policy, nodes=tfos.Nodes(heartbeat_timeout=2.0)
    ) as cluster:
        striker = Thread(target=strike_some, args=(cluster, draw))
        striker.start()
        slow = [SlowPartition(each) for each in partitions_of(sizes)]
        cluster._run.run_feed(FeedRequest(slow, timeout=60.0))
        striker.join()
        results = cluster.join()
        print([node.restarts for node in cluster.nodes], [len(found) for found in results.values()])
    for number in range(2):
        rows = [row for found in results.values() if found for row in found[number]]
        assert len(rows) == len(set(rows))
        if all(results.values()):  # a process that was killed after the feed was over has seen none of it
            assert sorted(rows) == list(range(sum(sizes)))

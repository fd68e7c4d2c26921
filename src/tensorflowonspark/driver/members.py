"""Members of a cluster: which supervisors are admitted, and the addresses and GPUs that the nodes are sent."""

import hmac
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeGuard

from tensorflowonspark.driver.nodes import Node, NodeState, Roster
from tensorflowonspark.messages import Accepted, Member, MemberReplaced, Members, NoMoreFeeds, Register
from tensorflowonspark.task.gpus import divide
from tensorflowonspark.transport import Channel


class Membership:
    """The members of one cluster; called under the lock of the nodes' states.

    A `Register` with another id than this one's is refused, and any one once `admits` returns False: the cluster has
    failed or ended.
    """

    def __init__(self, roster: Roster, admits: Callable[[], bool]) -> None:
        self._roster = roster
        self.cluster_id = uuid.uuid4().hex
        self._admits = admits
        self._members: dict[int, Member] = {}  # by number, once all nodes have registered
        self._no_more_feeds = False

    @property
    def complete(self) -> bool:
        """Whether all nodes have registered at one time; from then on one can be started again alone."""
        return bool(self._members)

    def node_of(self, request: Any) -> Node | None:
        """Return the node that a request registers; None if it registers none of this cluster.

        The request is not trusted before this.
        """
        return self._roster.nodes[request.member.number] if self._is_ours(request) else None

    def _is_ours(self, request: Any) -> TypeGuard[Register]:
        nodes = self._roster.nodes
        match request:
            case Register(Member(int(number), role), str(cluster)):
                if not 0 <= number < len(nodes) or role != nodes[number].role:
                    return False
                return hmac.compare_digest(cluster.encode(), self.id_of(nodes[number]).encode())
        return False

    def id_of(self, node: Node) -> str:
        """Return the id with which a node registers: another one after each restart of it alone."""
        return f"{self.cluster_id}.{node.restarts}" if node.restarts else self.cluster_id

    def admit(self, node: Node, request: Register, channel: Channel) -> bool:
        """Admit a supervisor, and send the addresses that its node, and the others, do not have yet.

        It returns False if the node has a supervisor: a second one is of a stage that Spark repeats, whose cluster has
        failed.
        """
        if not self._admits() or node.state not in (NodeState.AWAITED, NodeState.RESTARTING):
            return False
        node.member, process = request.member, node.process
        process.last_message = time.monotonic()
        process.channel, process.last_channel = channel, channel
        process.pid, process.jvm_pid, process.executor = request.pid, request.jvm_pid, request.executor
        self._roster.move(node, NodeState.CONNECTED)
        self._roster.send(node.number, Accepted())
        if node.restarts:
            self._replace(node, request.member)
        elif not self._roster.count(NodeState.AWAITED):
            self._send_all()
        return True

    def end_feeds(self) -> None:
        """Send all nodes, and those that are started again, that no further feed comes."""
        self._no_more_feeds = True
        self._roster.send_all(NoMoreFeeds())

    def _send_all(self) -> None:
        members = [node.member for node in self._roster.nodes if node.member]
        gpus = divide([(member.host, () if member.role.job == "ps" else member.gpus) for member in members])
        self._members = {each.number: replace(each, gpus=own) for each, own in zip(members, gpus, strict=True)}
        self._roster.send_all(Members(tuple(self._members.values())))

    def _replace(self, node: Node, new: Member) -> None:
        """Send a node that was started again all addresses, and the others its new one."""
        former = self._members[node.number]
        others = [each for each in self._members.values() if each is not former]
        if new.host == former.host:
            gpus = former.gpus  # Spark may offer those that other nodes use whose tasks have ended
        else:
            taken = {gpu for each in others if each.host == new.host for gpu in each.gpus}
            gpus = tuple(gpu for gpu in new.gpus if gpu not in taken)
        self._members[node.number] = replace(new, gpus=gpus)
        self._roster.send(node.number, Members(tuple(self._members.values())))
        if self._no_more_feeds:
            self._roster.send(node.number, NoMoreFeeds())
        for each in others:
            self._roster.send(each.number, MemberReplaced(self._members[node.number]))

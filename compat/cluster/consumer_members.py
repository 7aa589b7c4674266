"""Members of a group of KIP-848, whose coordinator is that of the classic group in `raw_members`, and their records for
K10: members that speak the protocol themselves, and librdkafka's consumer.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from compat.background import Background
from compat.cluster.nodes import COMMON, ProcessCluster
from compat.cluster.raw_members import ANSWER_S, GROUP, PARTITIONS, TOPIC, Client
from compat.oracle.groups import NONE, UNKNOWN_MEMBER, committing
from compat.oracle.raw import RawConnection
from compat.torture.load import Recorder
from kbroker.coordinator.common.ports import partition_for
from kbroker.testing.history import Function, Type

SETTINGS: Final = {
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "500",
}
FEATURES: Final = ("group.version=1",)
_OFFSET_PARTITIONS: Final = int(COMMON["offsets.topic.num.partitions"])
CONSUMER_GROUP: Final = next(
    name
    for name in map("consumers-{}".format, itertools.count())
    if partition_for(name, _OFFSET_PARTITIONS) == partition_for(GROUP, _OFFSET_PARTITIONS)
)
HEARTBEAT: Final = "ConsumerGroupHeartbeat"
FENCED_EPOCH, STALE_EPOCH = 110, 113
_FENCED: Final = (UNKNOWN_MEMBER, FENCED_EPOCH)
_JOINS, _LEAVES = 0, -1
_REBALANCE_MS: Final = 5_000
_POLL_S: Final = 0.02


class ConsumerMember(Client):
    """Heartbeats and commits an offset of each of its partitions in each round; leaves and joins again if `rejoins` is
    set. It drops at once what is not in its assignment any more, and tells the coordinator in its next heartbeat.
    """

    def __init__(self, name: str, cluster: ProcessCluster, recorder: Recorder, offsets: Callable[[], int]) -> None:
        super().__init__(name, cluster, recorder, group=CONSUMER_GROUP)
        self.owned: list[int] = []
        self.rejoins = False
        self._member_id = str(uuid.uuid4())
        self._epoch = _JOINS
        self._topic_id = b""
        self._told: list[int] | None = None  # what the coordinator knows of `owned`
        self._next_offset = offsets

    def work(self, connection: RawConnection) -> None:
        if self.rejoins and self._epoch > 0:
            self.rejoins = False
            self._beat(connection, _LEAVES)
            self._forget()
            self._member_id = str(uuid.uuid4())
        elif self._reconcile(connection):
            for partition in list(self.owned):
                self._commit(connection, partition)

    def _reconcile(self, connection: RawConnection) -> bool:
        """Report what it owns, and take its assignment. Returns whether it is a member."""
        says_all, owned = self._told is None or self._epoch == _JOINS, list(self.owned)
        known, self._told = self._told, None
        places = [{"TopicId": self._topic_id, "Partitions": owned}] if owned else []
        answer = self._beat(
            connection,
            self._epoch,
            RebalanceTimeoutMs=_REBALANCE_MS if says_all else -1,
            SubscribedTopicNames=[TOPIC] if says_all else None,
            TopicPartitions=places if says_all or known != owned else None,
        )
        if answer["ErrorCode"] in _FENCED:
            self._forget()
        if answer["ErrorCode"] != NONE:
            return False
        self._told = owned
        has_changed = answer["Assignment"] is not None or answer["MemberEpoch"] != self._epoch
        self._epoch = answer["MemberEpoch"]
        if answer["Assignment"] is not None:
            self.owned = []
            for topic in answer["Assignment"]["TopicPartitions"]:
                self._topic_id, self.owned = topic["TopicId"], list(topic["Partitions"])
        for partition in self.owned if has_changed else ():
            self.note(Function.OWN, Type.OK, partition, epoch=self._epoch)
        return True

    def _beat(self, connection: RawConnection, epoch: int, **more: Any) -> Any:
        message = {"GroupId": self.group, "MemberId": self._member_id, "MemberEpoch": epoch, **more}
        return self.ask(connection, HEARTBEAT, 1, {"RebalanceTimeoutMs": -1, **message})

    def _forget(self) -> None:
        self._epoch, self.owned, self._told = _JOINS, [], None

    def _commit(self, connection: RawConnection, partition: int) -> None:
        offset, epoch = self._next_offset(), self._epoch
        self.note(Function.COMMIT, Type.INVOKE, partition, offset=offset, epoch=epoch)
        outcome = Type.INFO
        try:
            message = committing(
                self.group, {TOPIC: [(partition, offset, None)]}, generation=epoch, member_id=self._member_id
            )
            answer = self.ask(connection, "OffsetCommit", 9, message)
            code = answer["Topics"][0]["Partitions"][0]["ErrorCode"]
            outcome = Type.OK if code == NONE else Type.FAIL if code in (*_FENCED, STALE_EPOCH) else Type.INFO
            self.check("OffsetCommit", code)
            if code in _FENCED:
                self._forget()
        finally:
            self.note(Function.COMMIT, outcome, partition, offset=offset, epoch=epoch)


class StockConsumer(Background):
    """librdkafka's consumer with group.protocol=consumer, in a thread: it commits an offset of each of its partitions
    in each round. It does not tell its epoch, so its commits are those of a client without one.

    Shape  owned and rounds are as those of ConsumerMember
    """

    def __init__(self, name: str, cluster: ProcessCluster, recorder: Recorder, offsets: Callable[[], int]) -> None:
        super().__init__(self._run)
        self.name = name
        self.owned: list[int] = []
        self.rounds = 0
        self._recorder = recorder
        self._next_offset = offsets
        self._settings = {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": CONSUMER_GROUP,
            "group.protocol": "consumer",
            "enable.auto.commit": False,
            "auto.offset.reset": "latest",
            "socket.timeout.ms": round(1000 * ANSWER_S),  # a coordinator that hangs keeps its connections
        }

    def _run(self) -> None:
        consumer = Consumer(self._settings)
        consumer.subscribe([TOPIC])
        while not self.over.is_set():
            consumer.poll(_POLL_S)
            self.owned = [place.partition for place in consumer.assignment()]
            for partition in self.owned:
                self._commit(consumer, partition)
            self.rounds += 1
        consumer.close()

    def _commit(self, consumer: Consumer, partition: int) -> None:
        offset, outcome = self._next_offset(), Type.INFO
        line = {"value": CONSUMER_GROUP, "offset": offset, "epoch": -1}
        key = f"{TOPIC}-{partition}"
        self._recorder.note(self.name, Function.COMMIT, Type.INVOKE, key, **line)
        try:
            (done,) = consumer.commit(offsets=[TopicPartition(TOPIC, partition, offset)], asynchronous=False) or ()
            outcome = Type.OK if done.error is None else Type.INFO
        except KafkaException:
            pass  # librdkafka repeats requests, so an earlier one may have been served
        finally:
            self._recorder.note(self.name, Function.COMMIT, outcome, key, **line)


def share(members: list[ConsumerMember | StockConsumer]) -> bool:
    """Whether the members own each partition once."""
    return sorted(itertools.chain.from_iterable(list(each.owned) for each in members)) == list(range(PARTITIONS))

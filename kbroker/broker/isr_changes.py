"""Brings the leaders' proposals to change ISRs to the controller.

Theory of operation: the broker sends one AlterPartition at a time. A request contains all proposals that are open when
it is sent; later ones go into the next request. If a request fails as a whole, the broker repeats it until the
controller answers, or until newer metadata have ended its proposals. Twice in `replica.lag.time.max.ms` the broker
looks for members that have fallen behind.

Source: AlterPartitionManager of Apache Kafka 4.3.1; KIP-497.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import trio

from kbroker.replication.isr import IsrProposal, Verdict
from kbroker.replication.partition import Partition
from kbroker.runtime.event_log import get_logger
from kbroker.storage.checkpoint import TopicPartition
from wire.errors import KafkaError
from wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestTopic,
    AlterPartitionResponse,
)

if TYPE_CHECKING:
    from kbroker.broker.broker import Broker

RETRY_MS: Final = 50
CHECKS_IN_LAG_TIME: Final = 2

logger = get_logger(__name__)


class IsrChanges:
    """The ISR changes of the partitions that this broker leads.

    Note  failed counts the proposals that the controller has not accepted
    """

    def __init__(self, broker: Broker) -> None:
        self.failed = 0
        self._broker = broker
        self._proposing: dict[TopicPartition, Partition] = {}
        self._news = trio.Event()

    def submit(self, proposing: Iterable[Partition]) -> None:
        """Send the open proposals of these partitions."""
        for partition in proposing:
            self._proposing[partition.key] = partition
            self._news.set()

    async def run(self) -> None:
        """Send proposals, and look for members that lag, until the task is cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._check_regularly)
            while True:
                await self._news.wait()
                self._news = trio.Event()
                if not await self._send():
                    await self._broker.env.sleep_ms(RETRY_MS)
                    self._news.set()

    async def _check_regularly(self) -> None:
        while True:
            lag_ms = self._broker.settings.replication.replica_lag_time_max_ms
            await self._broker.env.sleep_ms(max(1, lag_ms // CHECKS_IN_LAG_TIME))
            self.check(self._broker.replicas.partitions.values())

    def check(self, partitions: Iterable[Partition]) -> None:
        """Time has passed or brokers have changed: raise high watermarks, and propose ISRs without lagging members."""
        now_ms = self._broker.env.now_ms()
        for partition in list(partitions):
            rose, lagging = partition.check_isr(now_ms)
            if rose:
                self._broker.wake(partition.key)
            if lagging:
                logger.info(
                    "members of an ISR lag",
                    partition=partition.name,
                    isr=sorted(partition.isr),
                    lagging={
                        member: {"end_offset": follower.fetch_offset, "lag_ms": now_ms - follower.caught_up_ms}
                        for member, follower in lagging.items()
                    },
                    log_end_offset=partition.log.log_end_offset,
                )
                self.submit([partition])

    async def _send(self) -> bool:
        """Send all open proposals; False if some must be sent again."""
        broker = self._broker
        sent: dict[TopicPartition, tuple[Partition, IsrProposal]] = {}
        topics: dict[str, AlterPartitionRequestTopic] = {}
        proposing, self._proposing = self._proposing, {}
        for key, partition in proposing.items():
            proposal = partition.proposal
            if proposal is not None:
                sent[key] = partition, proposal
                topic = topics.setdefault(
                    partition.topic, AlterPartitionRequestTopic(topic_id=partition.topic_id, partitions=[])
                )
                topic.partitions.append(proposal.request(partition.index))
        if not sent:
            return True
        request = AlterPartitionRequest(
            broker_id=broker.node_id, broker_epoch=broker.lifecycle.epoch, topics=list(topics.values())
        )
        try:
            response = await broker.controller.ask(request, AlterPartitionResponse)
        except KafkaError as error:
            left_out = broker.log_limit.admit("AlterPartition", now_ms=broker.env.now_ms())
            if left_out is not None:
                why = error.message or error.code.name
                logger.warning("cannot change ISRs; will retry", partitions=len(sent), why=why, left_out=left_out)
            self._proposing = {key: partition for key, (partition, _) in sent.items()} | self._proposing
            return False
        names = {topic.topic_id: name for name, topic in topics.items()}
        unanswered = {key: partition for key, (partition, _) in sent.items()}
        for topic_answer in response.topics:
            for answer in topic_answer.partitions:
                name = names.get(topic_answer.topic_id)
                found = None if name is None else sent.get((name, answer.partition_index))
                if found is None:
                    continue
                partition, proposal = found
                verdict, rose = partition.on_isr_answer(proposal, answer)
                if rose:
                    broker.wake(partition.key)
                self._report(partition, proposal, verdict, answer.error_code)
                if verdict is not Verdict.RETRY:
                    unanswered.pop(partition.key, None)
        self._proposing = unanswered | self._proposing
        return not unanswered

    def _report(self, partition: Partition, proposal: IsrProposal, verdict: Verdict, code: int) -> None:
        if code:
            self.failed += 1
        if verdict is Verdict.COMMITTED or (verdict is Verdict.UNKNOWN and not code):
            kind = "an ISR has shrunk" if proposal.added is None else "an ISR has grown"
            logger.info(kind, partition=partition.name, isr=sorted(proposal.members))
        elif code:
            logger.info(
                "the controller has not changed an ISR",
                partition=partition.name,
                proposed=sorted(proposal.members),
                code=code,
                outcome=verdict.value,
            )

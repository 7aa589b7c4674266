"""The clients of the rows about transactions, idempotent producers and groups of KIP-848.

Requests are encoded before the clock starts. With transaction.version 2 each EndTxn increments the producer epoch, so
that the epochs of all transactions are known.
"""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace

from compat.bench.frames import RECORD_BYTES, check_produced, percentiles, produce_frame, receive
from compat.oracle.batches import Batch, Item
from compat.oracle.raw import RawConnection, Reply
from compat.oracle.schema import Message, decode_response, encode_request
from compat.waiting import MEASURE_S

PRODUCE, END, INIT, HEARTBEAT = 12, 5, 5, 1
TRANSACTION_RECORDS = 100
CONCURRENT_TRANSACTIONS = 51
GROUP_COORDINATOR, TRANSACTION_COORDINATOR = 0, 1
TRANSACTIONAL = 0x10
COORDINATOR_IS_LOADING, NOT_COORDINATOR = 14, 16
NOT_READY = (COORDINATOR_IS_LOADING, 15, NOT_COORDINATOR, CONCURRENT_TRANSACTIONS)


def _template(records: int, record_bytes: int, **more: int) -> Batch:
    """A batch of the current time whose records are encoded once."""
    items = [Item(b"x" * record_bytes)] * records
    body = b"".join(item.encode(place) for place, item in enumerate(items))
    return Batch(items, base_timestamp=int(time.time() * 1000), body=body, **more)


def _new_producer(connection: RawConnection, transactional_id: str | None) -> tuple[int, int]:
    """Id and epoch from InitProducerId."""
    message = {
        "TransactionalId": transactional_id, "TransactionTimeoutMs": 60_000, "ProducerId": -1, "ProducerEpoch": -1,
    }  # fmt: skip
    while True:
        answer = connection.call("InitProducerId", INIT, message)
        if answer["ErrorCode"] not in NOT_READY:
            assert answer["ErrorCode"] == 0, answer
            return answer["ProducerId"], answer["ProducerEpoch"]
        time.sleep(0.05)


def _coordinator(servers: str, key: str, *, key_type: int = TRANSACTION_COORDINATOR) -> str:
    """The address of the coordinator of a transactional id, or of a group."""
    connection = RawConnection(servers, timeout_s=60)
    message = {"KeyType": key_type, "CoordinatorKeys": [key]}
    while True:
        (found,) = connection.call("FindCoordinator", 4, message)["Coordinators"]
        if not found["ErrorCode"]:
            connection.close()
            return f"{found['Host']}:{found['Port']}"
        time.sleep(0.05)


def idempotent(servers: str, topic: str, *, count: int, records: int, record_bytes: int) -> dict[str, float]:
    """Plain and idempotent Produce of the same batch in turn, one in flight, `count` of each."""
    connection = RawConnection(servers, timeout_s=60)
    producer_id, epoch = _new_producer(connection, None)
    template = _template(records, record_bytes)
    plain = produce_frame(topic, template.encode())
    numbered = [
        replace(template, producer_id=producer_id, producer_epoch=epoch, base_sequence=number * records)
        for number in range(count)
    ]
    frames = [produce_frame(topic, batch.encode()) for batch in numbered]
    times: tuple[list[int], list[int]] = ([], [])
    for frame in frames:
        for kind, sent in enumerate((plain, frame)):
            began = time.perf_counter_ns()
            connection.socket.sendall(sent)
            reply = receive(connection.socket)
            times[kind].append(time.perf_counter_ns() - began)
    check_produced(reply)
    of_plain, of_idempotent = map(percentiles, times)
    volume = len(template.encode()) * 1e3 / 1e6
    return {
        "plain_us": of_plain["p50_us"],
        "idempotent_us": of_idempotent["p50_us"],
        "plain_mb_s": volume / statistics.fmean(times[0]) * 1e6,
        "idempotent_mb_s": volume / statistics.fmean(times[1]) * 1e6,
    }


def _transactional_produce(transactional_id: str, topic: str, batch: Batch) -> bytes:
    data = {"Index": 0, "Records": batch.encode()}
    message = {
        "TransactionalId": transactional_id, "Acks": -1, "TimeoutMs": 30_000,
        "TopicData": [{"Name": topic, "PartitionData": [data]}],
    }  # fmt: skip
    return encode_request("Produce", PRODUCE, message)


def _exchange(connection: RawConnection, frame: bytes, api: str, version: int) -> Message:
    got = connection.exchange(frame)
    assert isinstance(got, Reply), got
    return decode_response(api, version, got.payload)


def _produced(connection: RawConnection, frame: bytes) -> None:
    """Send a Produce, again as long as the previous transaction is not complete."""
    while True:
        answer = _exchange(connection, frame, "Produce", PRODUCE)
        code = answer["Responses"][0]["PartitionResponses"][0]["ErrorCode"]
        if code != CONCURRENT_TRANSACTIONS:
            assert code == 0, answer
            return


def transactions(servers: str, topic: str, *, count: int) -> dict[str, float]:
    """Transactions of one batch of 100 records of 100 bytes, one after the other; `servers` leads the partition."""
    transactional_id = f"bench-{topic}-{time.time_ns()}"
    data = RawConnection(servers, timeout_s=60)
    coordinator = RawConnection(_coordinator(servers, transactional_id), timeout_s=60)
    producer_id, first = _new_producer(coordinator, transactional_id)
    template = _template(TRANSACTION_RECORDS, 100, producer_id=producer_id, base_sequence=0, attributes=TRANSACTIONAL)
    frames = []
    for epoch in range(first, first + count):
        end = {
            "TransactionalId": transactional_id, "ProducerId": producer_id, "ProducerEpoch": epoch, "Committed": True,
        }  # fmt: skip
        produce = _transactional_produce(transactional_id, topic, replace(template, producer_epoch=epoch))
        frames.append((produce, encode_request("EndTxn", END, end)))
    commits = []
    began = time.perf_counter()
    for number, (produce, end_frame) in enumerate(frames):
        _produced(data, produce)
        asked = time.perf_counter_ns()
        answer = _exchange(coordinator, end_frame, "EndTxn", END)
        commits.append(time.perf_counter_ns() - asked)
        assert (answer["ErrorCode"], answer["ProducerEpoch"]) == (0, first + number + 1), answer
    return {"per_s": count / (time.perf_counter() - began), **percentiles(commits)}


def fill_transactions(
    servers: str, topic: str, *, partitions: int, megabytes: int, aborted_every: int, batches: int
) -> dict[str, float]:
    """Fill each partition with transactions of some batches of 16 KiB, of which one in `aborted_every` is aborted."""
    data = RawConnection(servers, timeout_s=60)
    records = (16 << 10) // (RECORD_BYTES + 16)
    for partition in range(partitions):
        transactional_id = f"fill-{topic}-{partition}"
        coordinator = RawConnection(_coordinator(servers, transactional_id), timeout_s=60)
        producer_id, epoch = _new_producer(coordinator, transactional_id)
        template = _template(records, RECORD_BYTES, producer_id=producer_id, attributes=TRANSACTIONAL)
        count = megabytes * 1_000_000 // len(template.encode()) // batches
        for number in range(count):
            for place in range(batches):
                batch = replace(template, producer_epoch=epoch, base_sequence=place * records)
                part = {"Index": partition, "Records": batch.encode()}
                message = {
                    "TransactionalId": transactional_id, "Acks": -1, "TimeoutMs": 30_000,
                    "TopicData": [{"Name": topic, "PartitionData": [part]}],
                }  # fmt: skip
                _produced(data, encode_request("Produce", PRODUCE, message))
            end = {
                "TransactionalId": transactional_id, "ProducerId": producer_id, "ProducerEpoch": epoch,
                "Committed": number % aborted_every != 0,
            }  # fmt: skip
            answer = coordinator.call("EndTxn", END, end)
            assert answer["ErrorCode"] == 0, answer
            epoch = answer["ProducerEpoch"]
        coordinator.close()
    return {}


def fill_producers(servers: str, topic: str, *, producers: int, batch_bytes: int) -> dict[str, float]:
    """Write one batch of each of many idempotent producers."""
    connection = RawConnection(servers, timeout_s=60)
    records = batch_bytes // (RECORD_BYTES + 16)
    template = _template(records, RECORD_BYTES, producer_epoch=0, base_sequence=0)
    for producer_id in range(producers):
        batch = replace(template, producer_id=1_000_000 + producer_id)
        connection.socket.sendall(produce_frame(topic, batch.encode()))
        reply = receive(connection.socket)
    check_produced(reply)
    return {"end": producers * records}


class _Member:
    """A member of a group of KIP-848 that acknowledges its assignment at once."""

    def __init__(self, servers: str, group: str, topic: str) -> None:
        self.connection = RawConnection(servers, timeout_s=60)
        self.owned: frozenset[int] = frozenset()
        self.epoch = 0
        self._group, self._topic = group, topic
        self._member_id = str(uuid.uuid4())
        self._topic_id: object = None

    def frame(self) -> bytes:
        """The next heartbeat."""
        owned = [{"TopicId": self._topic_id, "Partitions": sorted(self.owned)}] if self.owned else []
        message = {
            "GroupId": self._group, "MemberId": self._member_id, "MemberEpoch": self.epoch, "InstanceId": None,
            "RackId": None, "RebalanceTimeoutMs": 60_000 if self.epoch == 0 else -1,
            "SubscribedTopicNames": [self._topic] if self.epoch == 0 else None, "SubscribedTopicRegex": None,
            "ServerAssignor": None, "TopicPartitions": owned,
        }  # fmt: skip
        return encode_request("ConsumerGroupHeartbeat", HEARTBEAT, message)

    def note(self, answer: Message) -> None:
        """Take the epoch and the assignment of an answer."""
        if answer["ErrorCode"] in NOT_READY:
            return
        assert answer["ErrorCode"] == 0, answer
        self.epoch = answer["MemberEpoch"]
        if answer["Assignment"] is not None:
            parts = answer["Assignment"]["TopicPartitions"]
            self.owned = frozenset(each for part in parts for each in part["Partitions"])
            self._topic_id = parts[0]["TopicId"] if parts else self._topic_id


def _is_stable(members: Sequence[_Member], partitions: int) -> bool:
    owned = [each for member in members for each in member.owned]
    return len({member.epoch for member in members}) == 1 and sorted(owned) == list(range(partitions))


def join_consumers(servers: str, topic: str, *, members: int, count: int) -> dict[str, float]:
    """All members of a new group join at once and send heartbeats until all own their share; `count` groups."""
    times = []
    for number in range(count):
        name = f"consumers-{topic}-{number}-{time.time_ns()}"
        address = _coordinator(servers, name, key_type=GROUP_COORDINATOR)
        group = [_Member(address, name, topic) for _ in range(members)]
        began = time.perf_counter()
        while not _is_stable(group, members):
            assert time.perf_counter() - began < MEASURE_S, [(each.epoch, each.owned) for each in group]
            for member in group:
                member.connection.send(member.frame())
            for member in group:
                got = member.connection.answer()
                assert isinstance(got, Reply), got
                member.note(decode_response("ConsumerGroupHeartbeat", HEARTBEAT, got.payload))
        times.append(time.perf_counter() - began)
        for member in group:
            member.connection.close()
    return {"ms": statistics.median(times) * 1000}

"""Transactions of both protocols: states, fencing, aborted records, the last stable offset, offsets."""

from __future__ import annotations

import functools
from collections.abc import Callable

from compat.card.client import Client
from compat.card.codec import Message
from compat.card.registry import Area
from compat.card.rows.batches import part_of
from compat.card.rows.fetch import fetch, fetched
from compat.card.session import ABSENT, Topic
from compat.oracle.batches import Batch, Item
from compat.oracle.groups import fetching
from compat.oracle.test_fetch import parts, wanted
from compat.oracle.test_produce import produce

AREA = Area("transactions")
OTHER_ID = 1 << 40
# COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, CONCURRENT_TRANSACTIONS
WAITING = (14, 15, 16, 51)
TRANSACTIONAL = 0x10
Producer = tuple[int, int]


class Transactions:
    """One transactional id, its producer id and epoch. `new` is the protocol of transaction.version 2."""

    def __init__(self, client: Client, *, new: bool = False) -> None:
        if new:
            client.session.require_feature(TV, 2)
        self.client, self.new = client, new
        self.name = client.transactional_id()
        self.producer: Producer = (-1, -1)
        self.first_epoch = 0

    def call(self, api: str, version: int, message: Message) -> Message:
        """The first answer that is not one to wait for."""
        found: list[Message] = []

        def is_final() -> bool:
            found[:] = [self.client.call(api, version, message)]
            return _code(found[0]) not in WAITING

        self.client.until(is_final, f"{api} is only answered with codes to retry")
        return found[0]

    def init(self, producer: Producer = (-1, -1), *, version: int = 5, timeout_ms: int = 60_000) -> Message:
        """InitProducerId; the producer goes on with what it gets."""
        answer = self.call("InitProducerId", version, {
            "TransactionalId": self.name, "TransactionTimeoutMs": timeout_ms, "ProducerId": producer[0],
            "ProducerEpoch": producer[1],
        })  # fmt: skip
        return self._continued(answer)

    def add(self, *partitions: tuple[str, int], producer: Producer | None = None, version: int = 3) -> Message:
        """AddPartitionsToTxn of a client."""
        own, epoch = producer or self.producer
        topics: dict[str, list[int]] = {}
        for topic, index in partitions:
            topics.setdefault(topic, []).append(index)
        return self.call("AddPartitionsToTxn", version, {
            "V3AndBelowTransactionalId": self.name, "V3AndBelowProducerId": own, "V3AndBelowProducerEpoch": epoch,
            "V3AndBelowTopics": [{"Name": name, "Partitions": found} for name, found in topics.items()],
        })  # fmt: skip

    def add_offsets(self, group: str, producer: Producer | None = None, *, version: int = 3) -> Message:
        """AddOffsetsToTxn."""
        own, epoch = producer or self.producer
        message = {"TransactionalId": self.name, "ProducerId": own, "ProducerEpoch": epoch, "GroupId": group}
        return self.call("AddOffsetsToTxn", version, message)

    def produce(self, topic: Topic, value: bytes, sequence: int, producer: Producer | None = None) -> Message:
        """One record; with the new protocol this adds the partition."""
        own, epoch = producer or self.producer
        batch = Batch(
            [Item(value)], attributes=TRANSACTIONAL, producer_id=own, producer_epoch=epoch, base_sequence=sequence
        )
        message = {**produce(topic.name, batch.encode()), "TransactionalId": self.name}
        return part_of(self.client.call("Produce", 12 if self.new else 11, message))

    def end(self, *, is_commit: bool, producer: Producer | None = None, version: int | None = None) -> Message:
        """EndTxn, and wait until the markers are written."""
        own, epoch = producer or self.producer
        version = version or (5 if self.new else 4)
        message = {"TransactionalId": self.name, "ProducerId": own, "ProducerEpoch": epoch, "Committed": is_commit}
        answer = self.call("EndTxn", version, message)
        if answer["ErrorCode"] == 0:
            self.client.until(
                lambda: not str(self.described()["TransactionState"]).startswith("Prepare"), "the markers are missing"
            )
        return self._continued(answer) if version >= 5 else answer

    def described(self) -> Message:
        """The id's state."""
        asked = {"TransactionalIds": [self.name]}
        state: Message = self.client.call("DescribeTransactions", 0, asked)["TransactionStates"][0]
        state["TransactionStartTimeMs"] = min(state["TransactionStartTimeMs"], 1)
        state["Topics"].sort(key=lambda each: each["Topic"])
        for topic in state["Topics"]:
            if topic["Topic"] == "__consumer_offsets":
                topic["Partitions"] = len(topic["Partitions"])
        return state

    def _continued(self, answer: Message) -> Message:
        if answer["ErrorCode"] == 0:
            self.producer = (answer["ProducerId"], answer["ProducerEpoch"])
        return answer


def _code(answer: Message) -> int:
    """The error code of an answer, or of its first part."""
    if answer.get("ErrorCode"):
        return int(answer["ErrorCode"])
    for name in ("ResultsByTopicV3AndBelow", "ResultsByPartition"):
        if answer.get(name):
            return _code(answer[name][0])
    return int(answer.get("PartitionErrorCode", 0))


def topic_of(client: Client) -> Topic:
    """A topic for transactions whose records nothing reads."""
    return client.shared_topic("transactional", lambda: client.topic("transactional", partitions=2))


STATES = ("unknown", "Empty", "Ongoing", "CompleteCommit", "CompleteAbort")
Event = Callable[[Transactions, Topic, Producer], Message]
EVENTS: dict[str, Event] = {
    "InitProducerId again": lambda own, _, who: own.init(who),
    "AddPartitionsToTxn": lambda own, topic, who: own.add((topic.name, 1), producer=who),
    "AddOffsetsToTxn": lambda own, _, who: own.add_offsets("card-group", who),
    "a commit": lambda own, _, who: own.end(is_commit=True, producer=who),
    "an abort": lambda own, _, who: own.end(is_commit=False, producer=who),
}
PRODUCERS: dict[str, Callable[[Producer], Producer]] = {
    "the right producer": lambda right: right,
    "an older epoch": lambda right: (right[0], right[1] - 1),
    "a newer epoch": lambda right: (right[0], right[1] + 1),
    "another producer id": lambda right: (OTHER_ID, right[1]),
}


TV = "transaction.version"
# With transaction.version 2 Kafka remembers the former epoch of a producer that it has fenced, and answers a retry.
DEPENDS_ON_FEATURE = ("InitProducerId again", "Ongoing", "the right producer")


def _brought_to(client: Client, state: str, *, new: bool) -> Transactions:
    own, topic = Transactions(client, new=new), topic_of(client)
    if state == "unknown":
        own.producer = (OTHER_ID, 3)
        return own
    own.init()
    own.init(own.producer)  # so that there is an older epoch
    if state != "Empty":
        if new:
            own.produce(topic, b"v", 0)
        else:
            own.add((topic.name, 0))
    if state.startswith("Complete"):
        own.end(is_commit=state == "CompleteCommit")
    return own


def _event(event: str, state: str, new: bool, client: Client) -> None:
    for label, choose in PRODUCERS.items():
        if state == "unknown" and label != "the right producer":
            continue
        if (event, state, label) == DEPENDS_ON_FEATURE and not new and client.session.features.get(TV, 0) < 2:
            for skipped in (label, f"{label}: the state after that", f"{label}: the next InitProducerId"):
                client.skip(skipped)
            continue
        own = _brought_to(client, state, new=new)
        client.note(label, EVENTS[event](own, topic_of(client), choose(own.producer)))
        after = own.described()
        after["ProducerEpoch"] = "an epoch" if after["ProducerEpoch"] >= 0 else "none"
        client.note(f"{label}: the state after that", after)
        # What was answered and what is stored lead to the same future; this also ends an open transaction.
        client.note_code(f"{label}: the next InitProducerId", own.init()["ErrorCode"])


for _new in (False, True):
    for _state in STATES:
        for _event_name in EVENTS:
            AREA.add(
                f"{'new' if _new else 'old'} protocol, state {_state}: {_event_name}",
                functools.partial(_event, _event_name, _state, _new), limit_s=40,
            )  # fmt: skip


def _read(client: Client, topic: Topic, isolation: int) -> Message:
    """What a fetch from the start sees, with the records by their number and kind."""
    answer = fetched(client, 12, fetch(topic, 12, wanted(0), IsolationLevel=isolation))
    part = parts(answer)[0]
    data, kinds = part.pop("Records"), []
    position = 0
    while position + 61 <= len(data):
        size = 12 + int.from_bytes(data[position + 8 : position + 12], "big")
        is_control = data[position + 22] & 0x20
        kinds.append("marker" if is_control else "records")
        position += size
    for each in part.get("AbortedTransactions") or []:
        each["ProducerId"] = "id"
    return {**part, "batches": kinds}


def _aborted(new: bool, client: Client) -> None:
    topic, own = client.topic("aborted"), Transactions(client, new=new)
    own.init()
    for number, is_commit in enumerate((True, False, True)):
        if not new:
            own.add((topic.name, 0))
        sequence = 0 if new else number
        client.note(f"record {number}", own.produce(topic, b"%d" % number, sequence))
        for isolation in (0, 1):
            client.note(f"open {number}, isolation level {isolation}", _read(client, topic, isolation))
        client.note_code(f"end {number}", own.end(is_commit=is_commit)["ErrorCode"])
    for isolation in (0, 1):
        client.note(f"at the end, isolation level {isolation}", _read(client, topic, isolation))


for _new in (False, True):
    AREA.add(
        f"{'new' if _new else 'old'} protocol: aborted records, markers and the last stable offset",
        functools.partial(_aborted, _new), limit_s=40,
    )  # fmt: skip


@AREA.row("ListOffsets of committed reads stops at the last stable offset")
def _(client: Client) -> None:
    topic, own = client.topic("stable"), Transactions(client)
    client.call("Produce", 9, produce(topic.name, Batch().encode()))
    own.init()
    own.add((topic.name, 0))
    own.produce(topic, b"open", 0)
    for isolation in (0, 1):
        asked = [{"PartitionIndex": 0, "Timestamp": -1}]
        message = {"ReplicaId": -1, "IsolationLevel": isolation, "Topics": [{"Name": topic.name, "Partitions": asked}]}
        client.note(f"isolation level {isolation}", client.call("ListOffsets", 7, message)["Topics"])
    own.end(is_commit=False)


def _fenced(new: bool, client: Client) -> None:
    topic, old = client.topic("fenced"), Transactions(client, new=new)
    old.init()
    if not new:
        old.add((topic.name, 0))
    client.note("a record", old.produce(topic, b"old", 0))
    before = old.producer
    client.note_code("a new producer with the same id", old.init()["ErrorCode"])
    client.note("its record is aborted", _read(client, topic, 1))
    client.note("the old one writes", old.produce(topic, b"late", 1, producer=before))
    client.note("the old one adds a partition", old.add((topic.name, 0), producer=before))
    client.note_code("the old one commits", old.end(is_commit=True, producer=before)["ErrorCode"])


for _new in (False, True):
    AREA.add(
        f"{'new' if _new else 'old'} protocol: a new producer fences the old one and aborts its transaction",
        functools.partial(_fenced, _new), limit_s=40,
    )  # fmt: skip


@AREA.row("records of a partition that was not added are refused")
def _(client: Client) -> None:
    topic, own = client.topic("not-added"), Transactions(client)
    own.init()
    client.note("answer", own.produce(topic, b"v", 0))


@AREA.row("the new protocol gives a new epoch at each end")
def _(client: Client) -> None:
    topic, own = client.topic("epochs"), Transactions(client, new=True)
    own.init()
    for number in (1, 2):
        before = own.producer
        own.produce(topic, b"v", 0)
        own.end(is_commit=True)
        same_id = own.producer[0] == before[0]
        client.note(f"end {number}", {"same id": same_id, "epochs later": own.producer[1] - before[1]})
        client.note(f"the former epoch writes {number}", own.produce(topic, b"v", 1, producer=before))


@AREA.row("timeouts of transactions are bounded")
def _(client: Client) -> None:
    for timeout_ms in (0, -1, 900_000, 900_001, 2**31 - 1):
        client.note_code(f"{timeout_ms} ms", Transactions(client).init(timeout_ms=timeout_ms)["ErrorCode"])


@AREA.row("unknown partitions fail all partitions of AddPartitionsToTxn")
def _(client: Client) -> None:
    topic, own = topic_of(client), Transactions(client)
    own.init()
    for version in (0, 3):
        added = own.add((topic.name, 0), (topic.name, 7), (ABSENT, 0), version=version)
        client.note(f"version {version}", added)
    client.note("nothing was added", own.described()["TransactionState"])


@AREA.row("transactional ids are described and listed")
def _(client: Client) -> None:
    topic, own = topic_of(client), Transactions(client)
    unknown = client.call("DescribeTransactions", 0, {"TransactionalIds": [own.name, ""]})
    client.note("unknown and empty", unknown)
    own.init()
    own.add((topic.name, 0))
    client.note("ongoing", own.described())
    filters: dict[str, Message] = {
        "all": {}, "by state": {"StateFilters": ["Ongoing"]}, "by another state": {"StateFilters": ["Empty"]},
        "by an unknown state": {"StateFilters": ["?"]}, "by producer": {"ProducerIdFilters": [own.producer[0]]},
        "by duration": {"DurationFilter": 3_600_000},
    }  # fmt: skip
    for label, chosen in filters.items():
        answer = client.call("ListTransactions", 1, {"DurationFilter": -1, **chosen})
        answer["TransactionStates"] = [
            each for each in answer["TransactionStates"] if each["TransactionalId"] == own.name
        ]
        client.note(f"listed {label}", answer)
    own.end(is_commit=False)


def _offsets(new: bool, is_commit: bool, client: Client) -> None:
    topic, group, own = topic_of(client), client.group(), Transactions(client, new=new)
    own.init()
    if not new:
        client.note_code("the group is added", own.add_offsets(group)["ErrorCode"])
    partitions = [{"PartitionIndex": 0, "CommittedOffset": 7, "CommittedMetadata": "seven"}]
    message = {
        "TransactionalId": own.name, "GroupId": group, "ProducerId": own.producer[0], "ProducerEpoch": own.producer[1],
        "Topics": [{"Name": topic.name, "Partitions": partitions}],
    }  # fmt: skip
    client.note("committed", own.call("TxnOffsetCommit", 5 if new else 4, message))
    for is_stable in (False, True):
        asked = fetching(group, {topic.name: [0]}, stable=is_stable)
        client.note(f"while it is open, stable {is_stable}", client.call("OffsetFetch", 7, asked))
    older = {**message, "ProducerEpoch": own.producer[1] - 1}
    client.note("an older epoch", own.call("TxnOffsetCommit", 5 if new else 4, older))
    stranger = {**message, "GenerationId": 5, "MemberId": "nobody"}
    client.note("an unknown member", own.call("TxnOffsetCommit", 5 if new else 4, stranger))
    own.end(is_commit=is_commit)
    client.until(
        lambda: not _is_unstable(client, group, topic), "the group's offsets stay unstable after the transaction"
    )
    client.note("afterwards", client.call("OffsetFetch", 7, fetching(group, {topic.name: [0]}, stable=True)))


def _is_unstable(client: Client, group: str, topic: Topic) -> bool:
    answer = client.call("OffsetFetch", 7, fetching(group, {topic.name: [0]}, stable=True))
    return bool(answer["Topics"][0]["Partitions"][0]["ErrorCode"] == 88)


for _new in (False, True):
    for _is_commit in (True, False):
        _name = f"{'new' if _new else 'old'} protocol: offsets in a transaction that"
        AREA.add(
            f"{_name} {'commits' if _is_commit else 'aborts'}",
            functools.partial(_offsets, _new, _is_commit),
            limit_s=40,
        )


@AREA.row("markers for unknown partitions and from a client")
def _(client: Client) -> None:
    topics = [{"Name": ABSENT, "PartitionIndexes": [0]}]
    marker = {"ProducerId": OTHER_ID, "ProducerEpoch": 0, "TransactionResult": False, "Topics": topics}
    answer = client.call("WriteTxnMarkers", 1, {"Markers": [{**marker, "CoordinatorEpoch": 0}]})
    for each in answer["Markers"]:
        each["ProducerId"] = "id"
    client.note("answer", answer)

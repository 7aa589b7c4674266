"""Histories for the checkers: the requests of clients and their outcomes, one JSON object per line.

A history has one line for each invocation and one for each completion, in the order in which they happened in the
process that writes them:

    {"t": 1042, "proc": "p1", "f": "send", "key": "orders-0", "value": "p1-17", "type": "invoke"}
    {"t": 1045, "proc": "p1", "f": "send", "key": "orders-0", "value": "p1-17", "offset": 93, "type": "ok"}

`t` is milliseconds of one monotonic clock, `key` a partition, `value` a text that is unique among all sends to its
partition (the checkers find a record by it; for big payloads it is a digest). The type of a completion says what is
known: `ok` happened, `fail` did not happen and readers must never see it, `info` (a time-out, a lost connection) may
have happened or may still happen. An invocation without a completion counts as `info`.

The sends to a compacted topic have the key of their record as `rkey`, and those of tombstones have the topic's
delete.retention.ms as `tombstone`.

The line with the same proc, key and value completes a send, so a producer may have many in flight. A poll has one `ok`
line for each record that it returned. `assign` (with the offset from which the process is going to read) and
`subscribe` (a rebalance) set a reader's position. After the faults the recorder reads every partition to its end and
records that too: a `final` line for each record, with the log that was read (a replica, the tier) as proc; a `final`
line of type `info` for an offset that has no record for readers, with the reason (control, aborted, compacted) as err;
and one `bounds` line with log_end_offset as offset and log_start_offset as value.

Groups: the lines of `commit` (stores an offset; -1 deletes it), `committed` (reads it; -1 is none) and `own` (a member
is assigned the partition, always `ok`) have the group as value and, except for reads, the generation as epoch; -1 is a
commit without a member.

Transactions: the name of a transaction is the `txn` of its sends, of the polls of its inputs, and of the commits of
their offsets. Its `txn` lines have the name as value: the producer asks to commit it (`invoke`), it is committed
(`ok`), it is aborted (`fail`), or nothing is known (`info`). A transaction without an invocation is aborted. `init`
(always `ok`) is a producer that has got an epoch for its transactional id (value). A `poll` of type `info` has no
record: the process has received everything that it will receive before this offset. `stable` (always `ok`) is the last
stable offset (offset) and the high watermark (value) that a broker (proc) has named in one answer, as the leader of an
epoch. What the readers are allowed to see depends on their isolation level: `Allowances.uncommitted`.

Clusters: an observer asks all nodes again and again, and reads their disks at the end. All its lines are `ok`; proc is
the node that answered, or whose disk or log was read:

    leads       it answered as the leader of the partition: the leader epoch, and the high watermark as offset
    controller  it named the active controller (value) and its epoch; offset is the committed end, -1 if unknown
    isr         it named the replicas that are not in sync, as value: "2,3", or "" if all are
    heal        the harness has ended all faults; every node runs or is starting
    truncate    it logged a truncation to the offset; value is the high watermark that it knew, err its reason
    batch       one batch of a log on its disk: first offset, leader epoch, and a digest of all bytes as value
    epoch       one line of its leader-epoch checkpoint: the epoch and its first offset
    end         the log on its disk: log end offset as offset, log start offset as value

Source: the histories of Jepsen (Kingsbury), in particular of its Kafka and Redpanda tests.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import Final


class Function(StrEnum):
    """The operation of a process."""

    SEND = "send"
    POLL = "poll"
    TXN = "txn"
    INIT = "init"
    STABLE = "stable"
    ASSIGN = "assign"
    SUBSCRIBE = "subscribe"
    COMMIT = "commit"
    COMMITTED = "committed"
    OWN = "own"
    FINAL = "final"
    BOUNDS = "bounds"
    LEADS = "leads"
    CONTROLLER = "controller"
    ISR = "isr"
    HEAL = "heal"
    TRUNCATE = "truncate"
    BATCH = "batch"
    EPOCH = "epoch"
    END = "end"


class Type(StrEnum):
    """The stage of the operation that a line records."""

    INVOKE = "invoke"
    OK = "ok"
    FAIL = "fail"
    INFO = "info"


class BadHistory(ValueError):
    """The lines contradict each other: an error of the recorder, not of the broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line.

    Units   at_ms milliseconds of the recorder's monotonic clock; offset counts records, -1 for an acknowledgement
            without an offset; acks as in Produce (-1 all, 1 the leader); tombstone_ms is how long a tombstone stays
    """

    at_ms: int
    process: str
    function: Function
    type: Type
    key: str = ""
    value: str | None = None
    offset: int | None = None
    epoch: int | None = None
    acks: int = -1
    transaction: str | None = None
    error: str | None = None
    record_key: str | None = None
    tombstone_ms: int | None = None


_FIELDS: Final = {
    "t": "at_ms",
    "proc": "process",
    "f": "function",
    "key": "key",
    "value": "value",
    "offset": "offset",
    "epoch": "epoch",
    "err": "error",
    "acks": "acks",
    "txn": "transaction",
    "rkey": "record_key",
    "tombstone": "tombstone_ms",
    "type": "type",
}
"""A field's name in the line, and its attribute. Fields at their defaults are left out."""


def value_of(payload: bytes) -> str:
    """The name of a record in a history: the id at its start, which ends with "|", and a digest of all its bytes."""
    head = payload.split(b"|", 1)[0][:40].decode("ascii", errors="backslashreplace")
    return f"{head}#{blake2b(payload, digest_size=4).hexdigest()}"


def to_line(event: Event) -> str:
    """The event as a line of JSON, without the end of line and without absent fields."""
    line = {name: getattr(event, attribute) for name, attribute in _FIELDS.items()}
    given = {name: value for name, value in line.items() if value is not None and (name, value) != ("acks", -1)}
    return json.dumps(given, separators=(",", ":"), ensure_ascii=False)

"""What the coordinator runtime and its shards need from each other, and what the runtime needs from the logs.

    decided = shard.decide(request, caller, now_ms=..., timestamp_ms=...)
    append decided.records; then shard.on_appended(decided, ...), or shard.on_append_failed(decided, code, ...)
    send decided.response, unless it is Parked; send the answers that shard.take_answers() returns

Source: CoordinatorShard, CoordinatorResult and PartitionWriter of Apache Kafka 4.3.1.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Protocol, Self, TypeVar

from kbroker.metadata.image import Image
from kbroker.runtime.outcome import Outcome
from kbroker.runtime.purgatory import Purgatory
from kbroker.storage.log import Log
from kbroker.storage.verification import Verification
from wire.errors import ErrorCode

BATCH_OVERHEAD_BYTES: Final = 128
RECORD_OVERHEAD_BYTES: Final = 32
"""Upper bounds: the header of a batch, and what a record takes in addition to its key and value."""


def partition_for(key: str, partitions: int) -> int:
    """The partition that coordinates a group or a transactional id: the absolute value of Java's hash, modulo
    partitions.

    The smallest int32 has no absolute value and counts as 0. Source: Utils.abs of Apache Kafka.
    """
    code = 0
    for unit in struct.iter_unpack("<H", key.encode("utf-16-le", "surrogatepass")):
        code = (31 * code + unit[0]) & 0xFFFFFFFF
    if code & 0x80000000:
        code = (0x100000000 - code) & 0x7FFFFFFF
    return code % partitions


class Stored(Protocol):
    """A record that can be appended."""

    @property
    def key(self) -> bytes: ...

    @property
    def value(self) -> bytes | None: ...


class Producer(NamedTuple):
    """The producer whose transaction records belong to.

    Shape  verification is what the log needs to accept the first records of the transaction, see
           kbroker.storage.verification; None if the log need not check
    """

    producer_id: int
    producer_epoch: int
    verification: Verification | None = None


class Parked:
    """The response to a request that is answered later, exactly once, through `Shard.take_answers`.

    Shape   api_version is the request's; the format of some answers depends on it
    """

    __slots__ = ("api_version", "key")

    def __init__(self, key: str, api_version: int) -> None:
        self.key = key
        self.api_version = api_version

    def __repr__(self) -> str:
        return f"Parked({self.key!r}, v{self.api_version}, {id(self):#x})"


class Job(NamedTuple):
    """Work of a decision that would block the event loop. `run` is called in a thread, after the decision's records are
    in the log; its result makes the next decision of the shard. If the append fails, neither happens.
    """

    run: Callable[[], Any]
    decide: Callable[[Any], Decide]


@dataclass(frozen=True, slots=True, eq=False)
class Decided(Outcome[Any]):
    """The result of a decision: records with `.key` and `.value` as bytes, and the response, or Parked.

    Shape   records may be empty; the response is then valid immediately. refuse makes the response to send if the
            records are not stored; None if the decision answers no request, so that its records may be split into
            several batches. The runtime sets producer if the records are part of its transaction. jobs follow the
            append
    """

    refuse: Callable[[ErrorCode], Any] | None = field(default=None, repr=False)
    producer: Producer | None = None
    jobs: Sequence[Job] = ()

    def refused(self, code: ErrorCode) -> Any:
        """The response to send if the records are not stored. A parked request gets its answer from the shard."""
        if self.refuse is None or type(self.response) is Parked:
            return self.response
        return self.refuse(code)

    def parts(self, max_bytes: int) -> list[Self]:
        """Split this decision into decisions to append in order, each in a batch of at most max_bytes where its
        records allow it. Everything but the records belongs to the last part.
        """
        parts: list[list[Any]] = [[]]
        part_bytes = BATCH_OVERHEAD_BYTES
        for record in self.records:
            record_bytes = len(record.key) + len(record.value or b"") + RECORD_OVERHEAD_BYTES
            if parts[-1] and part_bytes + record_bytes > max_bytes:
                parts.append([])
                part_bytes = BATCH_OVERHEAD_BYTES
            parts[-1].append(record)
            part_bytes += record_bytes
        *first, last = parts
        return [*(type(self)(records, None) for records in first), replace(self, records=last)]


class Decide(Protocol):
    """A decision of a shard. All its arguments except the time are already bound."""

    def __call__(self, *, now_ms: int, timestamp_ms: int) -> Decided: ...


class Shard(Protocol):
    """The state of one partition of an internal topic. It makes one decision at a time.

    Units   now_ms is monotonic and drives the timers; timestamp_ms is wall time and is stored
    """

    def decide(self, request: Any, caller: Any, *, now_ms: int, timestamp_ms: int) -> Decided:
        """Decide a request. Errors are in the response; nothing is raised."""
        ...

    def on_appended(self, decided: Any, *, now_ms: int, timestamp_ms: int, base_offset: int) -> None:
        """Replay a decision whose records are now in the log, the first one at base_offset."""
        ...

    def on_append_failed(self, decided: Any, code: ErrorCode, *, now_ms: int, timestamp_ms: int) -> None:
        """Undo a decision whose records could not be appended."""
        ...

    def take_answers(self) -> Iterable[tuple[Parked, Any]]:
        """The answers to parked requests since the last call. Any other call may produce some."""
        ...

    def next_deadline_ms(self) -> int | None:
        """When to call on_time next; None if never. May be too early, but never too late."""
        ...

    def on_time(self, *, now_ms: int, timestamp_ms: int, aging_timestamp_ms: int) -> Decided:
        """Run all timers that are due. aging_timestamp_ms is the wall time that expiry compares with."""
        ...

    def replay(self, key: bytes | None, value: bytes | None, *, offset: int, producer_id: int) -> None:
        """Apply a record from the log while loading; producer_id is -1 outside of a transaction. Errors: Malformed."""
        ...

    def replay_marker(self, producer_id: int, *, committed: bool) -> None:
        """Apply a transaction marker that is in the log."""
        ...

    def after_loading(self, image: Image) -> Iterable[Decide]:
        """The first decisions, for a shard whose whole log is replayed."""
        ...

    def unload(self, *, now_ms: int, timestamp_ms: int) -> None:
        """End: answer all parked requests with NOT_COORDINATOR."""
        ...

    def sizes(self) -> Mapping[str, int]:
        """How much the shard holds, for the log line after loading."""
        ...


S = TypeVar("S", bound=Shard)


class Wait(Protocol):
    """How a request waits, as Context.wait of kbroker.handlers. False if the client has disconnected or the server
    stops.
    """

    def __call__(
        self, purgatory: Purgatory, *keys: object, until: Callable[[], bool], max_wait_ms: int
    ) -> Awaitable[bool]: ...


class Logs(Protocol):
    """What the coordinator needs from the owner of the logs."""

    def is_locked(self, held: Log) -> bool:
        """Whether a task holds the lock of the log, to append to it or change it in more than one step."""
        ...

    def locked(self, held: Log) -> AbstractAsyncContextManager[None]:
        """Block multi-step appends, other changes such as truncation, and the removal of the log."""
        ...

    def kept(self, held: Log) -> AbstractAsyncContextManager[None]:
        """Block only the truncation and the removal of the log."""
        ...

"""All transactional ids of one partition of `__transaction_state`, as a Shard of the coordinator runtime.

A decision takes effect when its record is in the log, so memory and log never differ; the runtime answers the client
when the record is committed. A prepared transaction is given to the caller as an Ending (`take_endings`), which may
send markers when the log is committed up to there.

Idle ids are ordered by their last update, so expiry and eviction look only at the first ones. The scan for timed out
transactions goes on in the next call after SCANNED_AT_ONCE of them.

Times: now_ms is monotonic and drives the timers; timestamp_ms is wall time and is stored.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Final

from kbroker.config.transactions import TransactionSettings
from kbroker.coordinator.common.ports import Decide, Decided, Parked
from kbroker.coordinator.refusals import response_code
from kbroker.coordinator.timers import Timer, Timers
from kbroker.coordinator.transactions.markers import Ending
from kbroker.coordinator.transactions.records import TransactionRecord, decode_record
from kbroker.coordinator.transactions.state import (
    COMPLETE,
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    ONGOING,
    PREPARED,
    Transaction,
)
from kbroker.coordinator.transactions.transitions import (
    Add,
    End,
    Init,
    Step,
    Verify,
    add,
    complete,
    end,
    fence,
    has_timed_out,
    init,
    is_expired,
    verify,
)
from kbroker.metadata.image import Image
from wire.errors import ErrorCode

SCANNED_AT_ONCE: Final = 500
"""Transactions that one decision of a timer looks at or changes; the rest follows in the next one."""

MAX_IDS: Final = 100_000
BYTES_OF_AN_ID: Final = 256
"""Ids may be longer, but then a shard holds fewer."""


class TransactionShard:
    """The transactional ids of one partition.

    Shape   server_version is the transaction.version in force; transactions is read-only for others
    Bound   max_ids, BYTES_OF_AN_ID for each of them, kbroker.max.partitions.per.transaction
    """

    __slots__ = (
        "_abortion",
        "_endings",
        "_expiry",
        "_id_bytes",
        "_idle",
        "_max_ids",
        "_ongoing",
        "_prepared",
        "_scan",
        "_server_version",
        "_settings",
        "_timed_out",
        "_timers",
        "abort_count",
        "commit_count",
        "timed_out_count",
        "transactions",
    )

    def __init__(
        self, settings: TransactionSettings, *, server_version: Callable[[], int], max_ids: int = MAX_IDS
    ) -> None:
        self.transactions: dict[str, Transaction] = {}
        self.commit_count = self.abort_count = self.timed_out_count = 0
        self._settings = settings
        self._server_version = server_version
        self._max_ids = max_ids
        self._id_bytes = 0
        self._idle: OrderedDict[str, None] = OrderedDict()
        self._ongoing: dict[str, None] = {}
        self._scan: list[str] = []
        self._prepared: dict[str, Ending] = {}
        self._endings: list[Ending] = []
        self._timed_out: list[str] = []
        self._timers = Timers()
        self._abortion = Timer()
        self._expiry = Timer()

    # Deciding

    def decide(self, request: Any, caller: Any, *, now_ms: int, timestamp_ms: int) -> Decided:
        """Decide a request: Init, Add, Verify or End. `caller` is a new producer id, or NO_PRODUCER_ID.

        Returns a Step, or the result of `verify`. Errors are in it; nothing is raised.
        """
        known = self.transactions.get(request.transactional_id)
        records: list[TransactionRecord] = []
        if type(request) is Verify:
            return Decided([], verify(known, request))
        step = self._fault(known, request)
        if step is None and type(request) is Add:
            step = add(known, request, timestamp_ms=timestamp_ms)
        elif step is None and type(request) is End:
            step = end(known, request, new_producer_id=caller, timestamp_ms=timestamp_ms)
        elif step is None:
            version = self._server_version()
            step = init(known, request, server_version=version, new_producer_id=caller, timestamp_ms=timestamp_ms)
            if known is None and step.after is not None:
                evicted = self._room_for(request.transactional_id)
                if evicted is None:
                    return Decided([], Step(ErrorCode.COORDINATOR_NOT_AVAILABLE))
                records += evicted
        if step.after is None:
            return Decided([], step)
        if type(request) is not Init and step.after.client_version > 0 and self._server_version() == 0:
            # The record could not say how the transaction ends. Clients do not ask for this without the feature.
            return Decided([], Step(ErrorCode.UNSUPPORTED_VERSION))
        return Decided([*records, self._record(step.after)], step._replace(after=None), _refused)

    def _fault(self, known: Transaction | None, request: Any) -> Step | None:
        """The error for a request that exceeds a limit."""
        if type(request) is Init:
            if not 0 < request.timeout_ms <= self._settings.transaction_max_timeout_ms:
                return Step(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        elif type(request) is Add:
            most = self._settings.kbroker_max_partitions_per_transaction
            has = {} if known is None else known.partitions
            if len(has) + len(request.partitions) > most and len({*has, *request.partitions}) > most:
                return Step(ErrorCode.POLICY_VIOLATION)
        return None

    def _room_for(self, transactional_id: str) -> list[TransactionRecord] | None:
        """The tombstones that make room for a new transactional id; None if too few ids are idle."""
        count, size = len(self.transactions) + 1, self._id_bytes + len(transactional_id)
        records: list[TransactionRecord] = []
        idle = iter(self._idle)
        while count > self._max_ids or size > self._max_ids * BYTES_OF_AN_ID:
            evicted = next(idle, None)
            if evicted is None:
                return None
            count, size = count - 1, size - len(evicted)
            records.append(TransactionRecord(evicted, None))
        return records

    def _record(self, after: Transaction) -> TransactionRecord:
        return TransactionRecord(after.transactional_id, after, self._server_version())

    def on_appended(self, decided: Decided, *, now_ms: int, timestamp_ms: int, base_offset: int = -1) -> None:
        """Apply a decision whose records are now in the log."""
        for record in decided.records:
            self._apply(record)
            known = record.transaction
            if known is not None and known.state in PREPARED:
                self._endings.append(self._prepared[known.transactional_id])
            elif known is not None and known.state in COMPLETE:
                self.commit_count += known.state is COMPLETE_COMMIT
                self.abort_count += known.state is COMPLETE_ABORT

    def on_append_failed(self, decided: Decided, code: ErrorCode, *, now_ms: int, timestamp_ms: int) -> None:
        """Nothing was changed, so there is nothing to undo. Expiry must not fail again at once."""
        if decided.refuse is None and self._expiry.deadline_ms is not None:
            pause_ms = self._settings.transaction_abort_timed_out_transaction_cleanup_interval_ms
            self._timers.schedule(self._expiry, max(self._expiry.deadline_ms, now_ms + pause_ms))

    def take_answers(self) -> list[tuple[Parked, Any]]:
        """No request is parked."""
        return []

    # The end of a transaction

    def take_endings(self) -> list[Ending]:
        """The transactions that were prepared since the last call. Their records precede the current end of the log."""
        endings, self._endings = self._endings, []
        return endings

    @property
    def has_endings(self) -> bool:
        """Whether take_endings has something to return."""
        return bool(self._endings)

    def is_prepared(self, ending: Ending) -> bool:
        """Whether the transaction still waits for its completion."""
        return self._prepared.get(ending.transaction.transactional_id) is ending

    def complete(self, endings: Iterable[Ending], *, now_ms: int, timestamp_ms: int) -> Decided:
        """All markers of these transactions are written."""
        records = []
        for ending in endings:
            if self.is_prepared(ending):
                known = self.transactions[ending.transaction.transactional_id]
                records.append(self._record(complete(known, timestamp_ms=timestamp_ms)))
        return Decided(records, None)

    # Timers

    def next_deadline_ms(self) -> int | None:
        """When to call on_time next; None if never."""
        return self._timers.next_deadline_ms()

    def on_time(self, *, now_ms: int, timestamp_ms: int, aging_timestamp_ms: int | None = None) -> Decided:
        """Abort transactions that have timed out, and remove transactional ids that have expired."""
        records: list[TransactionRecord] = []
        while (timer := self._timers.due(now_ms)) is not None:
            if timer is self._abortion:
                found = self._abort_timed_out(timestamp_ms)
                interval_ms = self._settings.transaction_abort_timed_out_transaction_cleanup_interval_ms
            else:
                found = self._expired(timestamp_ms if aging_timestamp_ms is None else aging_timestamp_ms)
                interval_ms = self._settings.transaction_remove_expired_transaction_cleanup_interval_ms
            records += found
            is_partial = bool(self._scan) if timer is self._abortion else len(found) == SCANNED_AT_ONCE
            self._timers.schedule(timer, now_ms + (1 if is_partial else interval_ms))
        return Decided(records, None)

    def _abort_timed_out(self, timestamp_ms: int) -> list[TransactionRecord]:
        version = self._server_version()
        records: list[TransactionRecord] = []
        scan = self._scan = self._scan or list(self._ongoing)
        for transactional_id in scan[-SCANNED_AT_ONCE:]:
            known = self.transactions.get(transactional_id)
            if known is not None and has_timed_out(known, timestamp_ms):
                step = fence(known, server_version=version, timestamp_ms=timestamp_ms)
                assert step.after is not None
                records.append(self._record(step.after))
        del scan[-SCANNED_AT_ONCE:]
        self.timed_out_count += len(records)
        self._timed_out += [record.transactional_id for record in records]
        return records

    def take_timed_out(self) -> list[str]:
        """The transactional ids whose transactions timed out since the last call, for the log."""
        timed_out, self._timed_out = self._timed_out, []
        return timed_out

    def _expired(self, timestamp_ms: int) -> list[TransactionRecord]:
        records: list[TransactionRecord] = []
        for transactional_id in self._idle:
            known, expiration_ms = self.transactions[transactional_id], self._settings.transactional_id_expiration_ms
            is_last = not is_expired(known, timestamp_ms, expiration_ms=expiration_ms)
            if is_last or len(records) == SCANNED_AT_ONCE:
                break
            records.append(TransactionRecord(transactional_id, None))
        return records

    # Loading

    def replay(self, key: bytes | None, value: bytes | None, *, offset: int = -1, producer_id: int = -1) -> None:
        """Apply a record from the log while loading. Records of unknown types are ignored. Errors: Malformed."""
        record = None if key is None else decode_record(key, value)
        if record is not None:
            self._apply(record)

    def replay_marker(self, producer_id: int, *, committed: bool) -> None:
        """The log has no transactions of its own."""

    def after_loading(self, image: Image) -> list[Decide]:
        """The first decision: start the timers, and continue with the transactions that are prepared."""
        return [self.on_loaded]

    def on_loaded(self, *, now_ms: int, timestamp_ms: int) -> Decided:
        """Finish loading."""
        settings = self._settings
        self._timers.schedule(
            self._abortion, now_ms + settings.transaction_abort_timed_out_transaction_cleanup_interval_ms
        )
        self._timers.schedule(
            self._expiry, now_ms + settings.transaction_remove_expired_transaction_cleanup_interval_ms
        )
        self._endings = list(self._prepared.values())
        return Decided([], None)

    def unload(self, *, now_ms: int, timestamp_ms: int) -> None:
        """Stop coordinating: no more markers are sent."""
        self._timers.cancel(self._abortion)
        self._timers.cancel(self._expiry)
        for ending in self._prepared.values():
            ending.is_cancelled = True
        self._prepared.clear()
        self._endings.clear()

    def _apply(self, record: TransactionRecord) -> None:
        transactional_id, after = record.transactional_id, record.transaction
        self._ongoing.pop(transactional_id, None)
        self._prepared.pop(transactional_id, None)
        self._idle.pop(transactional_id, None)
        if after is None:
            if self.transactions.pop(transactional_id, None) is not None:
                self._id_bytes -= len(transactional_id)
            return
        if transactional_id not in self.transactions:
            self._id_bytes += len(transactional_id)
        self.transactions[transactional_id] = after
        if after.state is ONGOING:
            self._ongoing[transactional_id] = None
        elif after.state in PREPARED:
            self._prepared[transactional_id] = Ending(after)
        else:
            self._idle[transactional_id] = None

    # Reading

    def sizes(self) -> dict[str, int]:
        """The number of transactional ids, and of transactions."""
        return {
            "transactional_ids": len(self.transactions),
            "ongoing": len(self._ongoing),
            "prepared": len(self._prepared),
        }

    @property
    def ongoing_count(self) -> int:
        """The number of transactions in progress."""
        return len(self._ongoing)

    @property
    def prepared_count(self) -> int:
        """The number of decided transactions that lack markers."""
        return len(self._prepared)


def _refused(code: ErrorCode) -> Step:
    """The result if a record could not be appended."""
    return Step(response_code(code))

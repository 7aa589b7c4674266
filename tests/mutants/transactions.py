"""Mutants of transactions: their coordinator, the logs that they write to, and the offsets that they commit."""

from __future__ import annotations

from typing import Final

from kbroker.testing.mutants import Mutant, Patch

_COORDINATOR: Final = "kbroker.coordinator.transactions.transaction_coordinator"
_OFFSETS: Final = "kbroker.coordinator.offsets"
_PRODUCERS: Final = "kbroker.storage.producer_state"
_SHARD: Final = "kbroker.coordinator.transactions.shard"
_TRANSITIONS: Final = "kbroker.coordinator.transactions.transitions"

TRANSACTIONS: Final = (
    Mutant(
        "open-transactions-are-stable",
        "The last stable offset ignores open transactions.",
        ("K5",),
        (
            Patch(
                "kbroker.replication.partition",
                "        return min(max(unstable, self.log.log_start_offset), high_watermark)\n",
                "        return high_watermark\n",
            ),
        ),
    ),
    Mutant(
        "aborted-transactions-not-listed",
        "A Fetch of read_committed has no list of aborted transactions.",
        ("K5",),
        (
            Patch(
                "kbroker.handlers.fetch",
                "producer_id=one.producer_id, first_offset=one.first_offset) for one in read.aborted\n",
                "producer_id=one.producer_id, first_offset=one.first_offset) for one in ()\n",
            ),
        ),
    ),
    Mutant(
        "tier-lists-no-aborted-transactions",
        "A Fetch from the tier lists the aborted transactions of local segments only.",
        ("K5",),
        (Patch("kbroker.tiered.aborted", "                    found.add(one)\n", "                    pass\n"),),
    ),
    Mutant(
        "epoch-not-raised-by-init",
        "InitProducerId gives a new producer the epoch of the earlier one.",
        ("K4", "K5"),
        (
            Patch(
                _TRANSITIONS,
                "        epoch, last_epoch = epoch + 1, epoch if expects else NO_EPOCH\n",
                "        epoch, last_epoch = max(epoch, 0), epoch if expects else NO_EPOCH\n",
            ),
        ),
    ),
    Mutant(
        "end-without-epoch-check",
        "EndTxn does not compare the epoch, so a fenced producer commits the transaction of its successor.",
        ("K4", "K5"),
        (
            Patch(
                _TRANSITIONS,
                "    if known.producer_epoch != request.producer_epoch:\n"
                "        return _FENCED\n"
                "    if known.state is ONGOING:\n"
                "        return _prepare(",
                "    if known.state is ONGOING:\n        return _prepare(",
            ),
            Patch(_TRANSITIONS, "    if known.producer_epoch != epoch:\n", "    if known.state is not ONGOING:\n"),
        ),
    ),
    Mutant(
        "epochs-forgotten-by-partitions",
        "A partition accepts batches and markers of an old producer epoch.",
        ("K3", "K4", "K5"),
        (Patch(_PRODUCERS, "        if epoch < self.producer_epoch:\n", "        if False:\n"),),
    ),
    Mutant(
        "marker-keeps-batches",
        "A marker that raises the epoch keeps the batches of the earlier one, so a batch of the next transaction is "
        "taken for a repetition of one of the transaction before.",
        ("K1", "K2", "K4", "K5"),
        (
            Patch(
                _PRODUCERS,
                "            entry.producer_epoch = header.producer_epoch\n            entry.batches.clear()\n",
                "            entry.producer_epoch = header.producer_epoch\n",
            ),
        ),
    ),
    Mutant(
        "prepared-not-resumed",
        "A coordinator that takes over a partition does not send the markers of prepared transactions.",
        ("K11",),
        (Patch(_SHARD, "        self._endings = list(self._prepared.values())\n", "        self._endings = []\n"),),
    ),
    Mutant(
        "transactions-lost-on-load",
        "A coordinator that takes over a partition does not load its transactional ids.",
        ("K4", "K5", "K11"),
        (Patch(_SHARD, "        if record is not None:\n            self._apply(record)\n", ""),),
    ),
    Mutant(
        "timed-out-transactions-stay-open",
        "A coordinator does not abort transactions that have timed out.",
        ("K11",),
        (
            Patch(
                _SHARD,
                "            if known is not None and has_timed_out(known, timestamp_ms):\n",
                "            if False:\n",
            ),
        ),
    ),
    Mutant(
        "markers-before-replication",
        "A coordinator sends markers before the in-sync replicas have the record of the outcome.",
        ("K5", "K10", "K11"),
        (
            Patch(
                _COORDINATOR,
                "        if led.outcome(led.partition.log.log_end_offset) is ErrorCode.NONE:\n",
                "        if True:\n",
            ),
        ),
    ),
    Mutant(
        "verification-skipped",
        "A leader does not ask the coordinator about the first batch of a transaction, so a late one stays open.",
        ("K4", "K5", "K11"),
        (
            Patch(
                "kbroker.broker.produce_verification",
                "    if not (adds or is_enabled):\n",
                "    if not adds:\n",
            ),
        ),
    ),
    Mutant(
        "open-transactions-lost-at-start",
        "A restarted broker does not know the transactions that are open in a producer snapshot.",
        ("K5",),
        (
            Patch(
                _PRODUCERS,
                "            for entry in self.producers.values()\n"
                "            if entry.current_txn_first_offset >= 0\n",
                "            for entry in ()\n",
            ),
        ),
    ),
    Mutant(
        "pending-offsets-visible",
        "Offsets of an open transaction count at once.",
        ("K4", "K10"),
        (Patch(_OFFSETS, "        if producer_id < 0:\n", "        if True:\n"),),
    ),
    Mutant(
        "unstable-offsets-shown",
        "OffsetFetch with require_stable shows the offset before an open transaction.",
        ("K4", "K10"),
        (
            Patch(
                "kbroker.coordinator.committing",
                "    if require_stable and (topic, index) in context.offsets.pending.places(group_id):\n",
                "    if False:\n",
            ),
        ),
    ),
    Mutant(
        "aborted-offsets-kept",
        "The marker of an aborted transaction commits its offsets.",
        ("K4", "K10"),
        (Patch(_OFFSETS, "                if committed and (known is None", "                if (known is None"),),
    ),
    Mutant(
        "committed-offsets-dropped",
        "The marker of a committed transaction drops its offsets.",
        ("K4", "K10"),
        (Patch(_OFFSETS, "                if committed and (known", "                if not committed and (known"),),
    ),
    Mutant(
        "marker-of-equal-epoch",
        "With transaction.version 2 a late marker of the transaction before ends the open one.",
        ("K5", "K11"),
        (
            Patch(
                _PRODUCERS,
                "is_late = epoch == self.producer_epoch and transaction_version >= EPOCH_FOR_EACH_TRANSACTION\n",
                "is_late = False\n",
            ),
        ),
    ),
    Mutant(
        "marker-of-old-coordinator",
        "A partition accepts markers of a coordinator that another one has replaced.",
        ("K5", "K11"),
        (Patch(_PRODUCERS, "        if coordinator_epoch < self.coordinator_epoch:\n", "        if False:\n"),),
    ),
    Mutant(
        "epoch-not-raised-by-end",
        "With transaction.version 2 EndTxn leaves the epoch.",
        ("K4", "K5", "K11"),
        (
            Patch(
                _TRANSITIONS,
                "        epoch, last_epoch = min(epoch + 1, MAX_EPOCH), epoch\n",
                "        epoch, last_epoch = epoch, epoch\n",
            ),
        ),
    ),
)

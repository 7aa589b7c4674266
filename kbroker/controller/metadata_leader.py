"""The leader of ``__cluster_metadata-0``: it gives decisions their offsets, and writes them.

At every start the only voter raises the quorum epoch, stores it, and appends a LeaderChange. An empty log then gets the
records of ``bootstrap.checkpoint`` in one metadata transaction.

The records of one decision are in one batch, so they are written completely or not at all. Records that exceed 8 MiB go
into several batches in one metadata transaction.

Blocking; one caller at a time.

Source: KIP-595, KIP-866.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from kbroker.config.sasl import SCRAM_SECRET
from kbroker.controller import records
from kbroker.controller.bootstrap import bootstrap_records
from kbroker.controller.features import METADATA_VERSION, require_supported
from kbroker.controller.metadata_log import MetadataLog
from kbroker.controller.quorum_state import QuorumState
from kbroker.controller.records import encode_value
from kbroker.controller.scram import secret_record
from kbroker.metadata.errors import UnusableMetadata
from kbroker.metadata.image import Image, Record
from kbroker.runtime.ports import Disk
from wire.errors import KafkaError
from wire.stored.metadata import AbortTransactionRecord, BeginTransactionRecord, EndTransactionRecord


@dataclass(slots=True, eq=False)
class Staged:
    """Encoded records to write: batches, each of which is written and synced separately."""

    batches: list[list[bytes]]
    end_offset: int


class MetadataLeader:
    """The only voter of this quorum. Call `begin_epoch` before the first decision.

    log  what this leader writes
    """

    def __init__(self, log: MetadataLog, *, node_id: int) -> None:
        self.log = log
        self._node_id = node_id
        self._max_batch_bytes = log.max_batch_bytes
        self._end_offset = log.log_end_offset  # of the staged records

    def begin_epoch(
        self,
        image: Image,
        *,
        disk: Disk,
        timestamp_ms: int,
        new_uuid: Callable[[], UUID],
        bootstrap: str | None = None,
    ) -> Image:
        """Become the leader of the next epoch: write quorum-state and LeaderChange, bootstrap an empty log, abort an
        open transaction, and choose the secret for SCRAM if Kafka's format tool has written users without one.

        bootstrap is the path of ``bootstrap.checkpoint``, used for an empty log. Returns the new image. Synced.
        Raises UnusableMetadata, before anything is written, for a cluster with features that it does not support, or
        with other voters
        """
        log, node_id = self.log, self._node_id
        require_supported(image.levels, "the metadata log")
        _require_only_voter(image, node_id)
        log.begin_epoch(QuorumState(leader_id=node_id, leader_epoch=log.epoch + 1, voted_id=-1, voters=(node_id,)))
        change = records.leader_change_batch(
            voter_id=node_id, base_offset=self._end_offset, epoch=log.epoch, timestamp_ms=timestamp_ms
        )
        log.append(change, timestamp_ms=timestamp_ms)
        self._end_offset += 1
        needed: list[Record] = []
        if image.open_transaction is not None:
            needed.append(AbortTransactionRecord(reason="Controller failover"))
        if not image.metadata_version:
            first = bootstrap_records(disk, bootstrap)
            needed += [BeginTransactionRecord(name="Bootstrap records"), *first, EndTransactionRecord()]
        coming = image.apply(needed, offset=self._end_offset, epoch=log.epoch) if needed else image
        if coming.scram_credentials and SCRAM_SECRET not in coming.broker_configs(None):
            needed.append(secret_record(new_uuid))
        if needed:
            level = coming.metadata_version or METADATA_VERSION
            values = [encode_value(record, level) for record in needed]
            self.write(self.stage(values, metadata_version=level), timestamp_ms=timestamp_ms)
        return image.apply(needed, offset=self._end_offset - 1, epoch=log.epoch)

    def fits(self, values: list[bytes], *, onto: Staged) -> bool:
        """Whether the records of one more decision fit into the staged batch."""
        return len(onto.batches) == 1 and records.size(onto.batches[0]) + records.size(values) <= self._max_batch_bytes

    def stage(self, values: list[bytes], *, metadata_version: int, onto: Staged | None = None) -> Staged:
        """Assign offsets to the encoded records of one decision, without writing anything.

        `onto` adds them to an already staged batch; `fits` must have returned True. Records that need several batches
        are framed by a metadata transaction, whose Begin record takes the first offset.
        """
        if onto is not None:
            onto.batches[0] += values
            self._end_offset = onto.end_offset = onto.end_offset + len(values)
            return onto
        batches = [values]
        if records.size(values) > self._max_batch_bytes:
            begin, end = BeginTransactionRecord(name="Large decision"), EndTransactionRecord()
            framed = [encode_value(begin, metadata_version), *values, encode_value(end, metadata_version)]
            batches = list(records.split(framed, self._max_batch_bytes))
        self._end_offset += sum(map(len, batches))
        return Staged(batches, self._end_offset)

    def write(self, staged: Staged, *, timestamp_ms: int) -> None:
        """Append and sync.

        Errors  those of MetadataLog.append; after KAFKA_STORAGE_ERROR the staged records have lost their offsets
        """
        start = offset = self.log.log_end_offset
        try:
            if len(staged.batches) > 1:
                self.log.expect_room(sum(map(records.size, staged.batches)))
            for values in staged.batches:
                batch = records.data_batch(values, base_offset=offset, epoch=self.log.epoch, timestamp_ms=timestamp_ms)
                self.log.append(batch, timestamp_ms=timestamp_ms)
                offset += len(values)
        except KafkaError as error:
            if self.log.log_end_offset != start:
                raise UnusableMetadata(f"a decision is only partly in the metadata log: {error.message}") from error
            self._end_offset = start
            raise
        assert offset == staged.end_offset, f"{offset=}, staged to {staged.end_offset}"


def _require_only_voter(image: Image, node_id: int) -> None:
    """Refuse the directory of one voter of several: without the others, this node must not begin an epoch."""
    voters = [] if image.voters is None else [voter.voter_id for voter in image.voters.voters]
    if image.voters is not None and voters != [node_id]:
        raise UnusableMetadata(
            f"the metadata log lists the voters {voters}; this node, {node_id}, must be the only voter"
        )

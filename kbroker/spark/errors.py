"""The errors of reading and of jobs, one class for each cause.

Users see them in the log of a Spark job, far from where they were raised. So every message names the partition, the
offset and the object as far as they are known, and ends with a remedy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final
from uuid import UUID

from kbroker.spark.positions import Partition
from kbroker.tiered.api import (
    RemoteLogSegmentMetadata,
    RemoteObjectDamaged,
    RemoteResourceNotFound,
    RemoteStorageError,
)
from wire.errors import Malformed
from wire.types import ZERO_UUID, uuid_to_text


class KbrokerSourceError(Exception):
    """Reading failed. Rows that were returned before are correct, but the job is incomplete.

    Shape  what is the cause and remedy the user's next step, both without a full stop; at is a topic or a partition;
           object_name is the store's name of the object, None if no object is involved
    Units  offset is the first offset that could not be read
    """

    def __init__(
        self,
        what: str,
        *,
        remedy: str,
        at: str | Partition | None = None,
        offset: int | None = None,
        object_name: str | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy
        self.at = at
        self.offset = offset
        self.object_name = object_name

    def __str__(self) -> str:
        where = []
        if self.at is not None:
            where.append(self.at if isinstance(self.at, str) else f"{self.at[0]}-{self.at[1]}")
        if self.offset is not None:
            where.append(f"at offset {self.offset}")
        if self.object_name is not None:
            where.append(f"in {self.object_name}")
        place = " ".join(where)
        return f"{place + ': ' if place else ''}{self.what}. Remedy: {self.remedy}."

    def __reduce__(self) -> tuple[Any, ...]:
        again = partial(type(self), remedy=self.remedy, at=self.at, offset=self.offset, object_name=self.object_name)
        return again, (self.what,)


class InvalidOption(KbrokerSourceError):
    """An invalid option or schema."""


class UnknownTopic(KbrokerSourceError):
    """The topic or partition does not exist."""


class TopicRecreated(KbrokerSourceError):
    """The topic was deleted and created again after the job was planned."""


class OffsetsOutOfRange(KbrokerSourceError):
    """The partition does not have these offsets; found before anything was read."""


class RecordsExpired(KbrokerSourceError):
    """Records that existed when the job was planned have been deleted."""


class OffsetsNotCovered(KbrokerSourceError):
    """No segment of the log's history has these offsets, and no broker was named."""


class MissingObject(KbrokerSourceError):
    """The store does not have an object that the metadata mentions."""


class DamagedObject(KbrokerSourceError):
    """The bytes of an object, or those that a broker sent, are not the bytes that were stored."""


class UnknownCodec(DamagedObject):
    """An intact batch with an unknown compression codec."""


class UnrepresentableRecord(KbrokerSourceError):
    """An intact record with a value that no column can hold."""


class StoreUnavailable(KbrokerSourceError):
    """The store cannot be read now: it is down, slow, or refuses access."""


class BrokerUnavailable(KbrokerSourceError):
    """No broker answers, or the partition has no leader."""


class JobError(KbrokerSourceError):
    """A job cannot do what was requested."""


class ExportConflict(JobError):
    """The output directory contains something that the export cannot be added to."""


class ReplayConflict(JobError):
    """The target is not as this replay left it, or it cannot store the source's records."""


class IncompleteExport(JobError):
    """The directory of an export that is not complete."""


def unknown_topic(topic: str, partition: int | None = None) -> UnknownTopic:
    """The error for a topic or partition that does not exist."""
    what = "there is no such topic" if partition is None else "the topic has no such partition"
    remedy = "name an existing one, see `kbroker topic --list`"
    return UnknownTopic(what, remedy=remedy, at=topic if partition is None else (topic, partition))


def same_topics(known: Mapping[str, UUID], found: Iterable[tuple[str, UUID]]) -> None:
    """Errors: TopicRecreated for a topic whose id differs from the known one."""
    for topic, topic_id in found:
        before = known.get(topic, topic_id)
        if before != topic_id and ZERO_UUID not in (before, topic_id):
            raise TopicRecreated(
                f"the topic was deleted and created again: its id is {uuid_to_text(topic_id)}, it was"
                f" {uuid_to_text(before)}",
                remedy="start the job again, a stream with another checkpoint; the deleted topic's records are gone",
                at=topic,
            )


def expired(partition: Partition, offset: int, *, log_start_offset: int) -> RecordsExpired:
    """The error for records that were deleted before a job read them."""
    return RecordsExpired(
        f"the records up to offset {log_start_offset - 1} were deleted before they were read, by retention or by"
        " DeleteRecords",
        remedy="keep records longer (retention.ms, retention.bytes), and start the job again with what is left, a"
        " stream with failOnDataLoss=false",
        at=partition,
        offset=offset,
    )


def store_unavailable(
    storage: object, error: Exception, at: Partition | None = None, offset: int | None = None
) -> StoreUnavailable:
    """The error for a store that cannot be listed or read."""
    remedy = "check that the store answers and that its keys permit listing and reading"
    return StoreUnavailable(f"{storage!r} cannot be read: {error}", remedy=remedy, at=at, offset=offset)


_REMEDIES: Final[dict[type[KbrokerSourceError], str]] = {
    DamagedObject: "find other damage with kbroker tier scrub --deep, restore the object from a copy of the store, and"
    " start the job again",
    MissingObject: "check the store with kbroker tier scrub, restore the object from a copy of the store, or skip its"
    " records with failOnDataLoss=false",
    UnknownCodec: "use a version of kbroker that knows the codec, or start after this batch (startingOffsets)",
    UnrepresentableRecord: "omit the column timestamp with .schema(...), or start after this batch (startingOffsets)",
    StoreUnavailable: "check that the store is up and that rsm.config.* give access to it, and start the job again",
}


def segment_error(
    kind: type[KbrokerSourceError], what: str, segment: RemoteLogSegmentMetadata, storage: object, *, offset: int
) -> KbrokerSourceError:
    """The error for a segment whose object cannot be read at this offset. `kind` is a key of `_REMEDIES`."""
    id_ = segment.remote_log_segment_id.topic_id_partition
    name = object_of(segment, storage)
    return kind(what, remedy=_REMEDIES[kind], at=(id_.topic, id_.partition), offset=offset, object_name=name)


def error_of_store(error: RemoteStorageError | OSError | Malformed) -> tuple[type[KbrokerSourceError], str]:
    """The error class and message for a store's error about an object, or for bytes of it that are not a batch."""
    if isinstance(error, RemoteResourceNotFound):
        return MissingObject, f"the object is missing: {error}"
    if isinstance(error, Malformed):
        return DamagedObject, f"a batch cannot be decoded: {error}"
    is_too_short = isinstance(error, OSError) and not error.errno
    if is_too_short or isinstance(error, RemoteObjectDamaged):
        return DamagedObject, str(error)
    return StoreUnavailable, f"the object cannot be read: {error}"


def object_of(segment: RemoteLogSegmentMetadata, storage: object) -> str:
    """The name of a segment's object for messages, with its store, if the store is known to name objects."""
    from kbroker.tiered.layout import SEGMENT, object_name  # noqa: PLC0415  # only needed for errors

    if hasattr(storage, "list_objects"):
        return f"object {object_name(segment, SEGMENT)} of {storage!r}"
    return f"segment {segment.remote_log_segment_id.id} of {type(storage).__name__}"

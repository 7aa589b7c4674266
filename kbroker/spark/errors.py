"""What can go wrong while records are read, each as an error of its own.

Whoever meets one reads it in a Spark job's log, far from where it was raised: so every message names the partition, the
offset and the object as far as they are known, and ends with what to do.
"""

from __future__ import annotations

from typing import Any, Final

from kbroker.tiered.api import (
    RemoteLogSegmentMetadata,
    RemoteObjectDamaged,
    RemoteResourceNotFound,
    RemoteStorageError,
)


class KbrokerSourceError(Exception):
    """Reading failed. No row was made up: what was handed out before is right, and the job must not be taken for done.

    Shape  what says what happened and remedy what to do, both without a full stop at the end; object_name is what the
           store calls the object, None where no object is concerned
    Units  offset is the first one that could not be read
    """

    def __init__(
        self,
        what: str,
        *,
        remedy: str,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
        object_name: str | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.object_name = object_name

    def __str__(self) -> str:
        where = []
        if self.topic is not None:
            where.append(self.topic if self.partition is None else f"{self.topic}-{self.partition}")
        if self.offset is not None:
            where.append(f"at offset {self.offset}")
        if self.object_name is not None:
            where.append(f"in {self.object_name}")
        place = " ".join(where)
        return f"{place + ': ' if place else ''}{self.what}. To mend it: {self.remedy}."

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.what, {name: getattr(self, name) for name in _FIELDS})


_FIELDS = ("remedy", "topic", "partition", "offset", "object_name")


def _rebuilt(kind: type[KbrokerSourceError], what: str, fields: dict[str, Any]) -> KbrokerSourceError:
    return kind(what, **fields)


class InvalidOption(KbrokerSourceError):
    """An option, or a schema, that means nothing here."""


class UnknownTopic(KbrokerSourceError):
    """There is no such topic or partition."""


class TopicRecreated(KbrokerSourceError):
    """The topic of this name is another one than when the job was planned."""


class OffsetsOutOfRange(KbrokerSourceError):
    """Offsets that the partition has not got (any more), known before anything was read."""


class RecordsExpired(KbrokerSourceError):
    """Records that were there when the job was planned have been deleted since."""


class OffsetsNotCovered(KbrokerSourceError):
    """Nobody has these offsets: neither a segment of the tier's lineage nor a broker."""


class MissingObject(KbrokerSourceError):
    """The store has not got an object that the metadata tell of."""


class DamagedObject(KbrokerSourceError):
    """The bytes of an object, or those that a broker sent, are not what was stored there."""


class UnknownCodec(DamagedObject):
    """A batch that is whole, but compressed in a way that is not known here."""


class UnrepresentableRecord(KbrokerSourceError):
    """A record that is whole, but has a value that no column can hold."""


class StoreUnavailable(KbrokerSourceError):
    """The store cannot be read now: it is down, slow, or refuses access."""


class BrokerUnavailable(KbrokerSourceError):
    """No broker answers, or none that leads the partition."""


def unknown_topic(topic: str, partition: int | None = None) -> UnknownTopic:
    """What to say of a topic that is not there."""
    what = "there is no such topic" if partition is None else "the topic has no such partition"
    remedy = "name one that exists, see `kbroker topic --list`"
    return UnknownTopic(what, remedy=remedy, topic=topic, partition=partition)


_REMEDIES: Final[dict[type[KbrokerSourceError], str]] = {
    DamagedObject: "find what else is damaged with kbroker tier scrub --deep, put the object back from a copy of the"
    " store, and start the job again",
    MissingObject: "see with kbroker tier scrub what the store has, put the object back from a copy of the store, or"
    " leave its records out with failOnDataLoss=false",
    UnknownCodec: "read it with a kbroker that knows the codec, or begin behind this batch (startingOffsets)",
    UnrepresentableRecord: "leave the column timestamp out with .schema(...), or begin behind this batch"
    " (startingOffsets)",
    StoreUnavailable: "see that the store is up and that rsm.config.* of the job may read it, and start the job again",
}


def segment_error(
    kind: type[KbrokerSourceError], what: str, segment: RemoteLogSegmentMetadata, storage: object, *, offset: int
) -> KbrokerSourceError:
    """What to say of a segment whose object cannot be read at this offset; `kind` is one of those that have a remedy
    of their own here.
    """
    partition = segment.remote_log_segment_id.topic_id_partition
    return kind(
        what,
        remedy=_REMEDIES[kind],
        topic=partition.topic,
        partition=partition.partition,
        offset=offset,
        object_name=object_of(segment, storage),
    )


def told_by_store(error: RemoteStorageError) -> tuple[type[KbrokerSourceError], str]:
    """What a store's error about an object means, and what to say of it."""
    if isinstance(error, RemoteResourceNotFound):
        return MissingObject, f"the object is missing: {error}"
    if isinstance(error, RemoteObjectDamaged):
        return DamagedObject, str(error)
    return StoreUnavailable, f"the object cannot be read: {error}"


def object_of(segment: RemoteLogSegmentMetadata, storage: object) -> str:
    """What a message calls the object of a segment: its name, where the manager is known to name things, and whose."""
    from kbroker.tiered.layout import SEGMENT, object_name  # noqa: PLC0415  # only when something went wrong

    if hasattr(storage, "list_objects"):
        return f"object {object_name(segment, SEGMENT)} of {storage!r}"
    return f"segment {segment.remote_log_segment_id.id} of {type(storage).__name__}"

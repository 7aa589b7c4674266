"""Settings of one topic, each with the broker settings that it falls back to, strongest first."""

from __future__ import annotations

import re
from copy import copy
from typing import Final

from kbroker.config.cleaner import CleanerSettings
from kbroker.config.leases import fault
from kbroker.config.log_settings import SMALLEST_SEGMENT_BYTES, LogSettings
from kbroker.config.settings import DAY, HOUR, MAX_INT64, MINUTE, Setting, declarations
from kbroker.config.values import Kind
from kbroker.config.without_effect import without_effect

ATTACHED_END_OFFSETS: Final = "kbroker.attached.end.offsets"
ATTACHED_LEADER_EPOCH: Final = "kbroker.attached.leader.epoch"
MAX_ATTACHED_EPOCH: Final = 1 << 30
"""Elections raise the leader epoch, which is an int32: an epoch that overflows could be neither stored nor sent."""
_REPLICAS = re.compile(r"([0-9]+:[0-9]+)(,[0-9]+:[0-9]+)*", re.ASCII)
_END: Final = re.compile(r"[0-9]{1,10}:[0-9]{1,19}", re.ASCII)
_OF_THE_BROKER: Final = {one.name: one for area in (LogSettings, CleanerSettings) for one in declarations(area)}


def _throttled(side: str, act: str) -> Setting:
    key = f"{side}.replication.throttled.replicas"

    def check(replicas: tuple[str, ...]) -> str | None:
        if replicas in ((), ("*",)) or _REPLICAS.fullmatch(",".join(replicas)):
            return None
        form = "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
        return f"{key} must be the literal '*' or a list of replicas in the following format: {form}"

    return Setting(
        (),
        name=key,
        kind=Kind.LIST,
        check=check,
        doc=f"Replicas that {act} at a throttled rate, while the broker has {side}.replication.throttled.rate.",
    )


def _check_ends(entries: tuple[str, ...]) -> str | None:
    if all(_END.fullmatch(entry) for entry in entries):
        return None
    return f"{ATTACHED_END_OFFSETS} must be a list of the form [partition]:[offset],[partition]:[offset],..."


def _as_for_the_broker(name: str, fallback: str, doc: str = "") -> Setting:
    """A setting with the type, default, bounds and (without doc) description of the broker's setting."""
    one = copy(_OF_THE_BROKER[fallback])
    one.name, one.synonyms, one.doc = name, ((fallback, 1),), doc or one.doc
    return one


SETTINGS: Final = (
    _as_for_the_broker("cleanup.policy", "log.cleanup.policy"),
    _as_for_the_broker("compression.type", "compression.type"),
    _as_for_the_broker("compression.gzip.level", "compression.gzip.level"),
    _as_for_the_broker("compression.lz4.level", "compression.lz4.level"),
    _as_for_the_broker("compression.zstd.level", "compression.zstd.level"),
    _as_for_the_broker("delete.retention.ms", "log.cleaner.delete.retention.ms"),
    _as_for_the_broker("file.delete.delay.ms", "log.segment.delete.delay.ms"),
    _as_for_the_broker(
        "flush.messages",
        "log.flush.interval.messages",
        doc="Number of records after which the broker syncs the log. With 1, every acknowledged record survives a "
        "power failure.",
    ),
    Setting(
        MAX_INT64,
        name="flush.ms",
        kind=Kind.LONG,
        at_least=0,
        synonyms=(("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1)),
        doc="Time after which the broker syncs unsynced records.",
    ),
    _as_for_the_broker("index.interval.bytes", "log.index.interval.bytes"),
    _as_for_the_broker(
        "local.retention.bytes",
        "log.local.retention.bytes",
        doc="Retention size of a tiered topic's local segments. -2 means retention.bytes.",
    ),
    _as_for_the_broker(
        "local.retention.ms",
        "log.local.retention.ms",
        doc="Retention time of a tiered topic's local segments. -2 means retention.ms.",
    ),
    _as_for_the_broker("max.message.bytes", "message.max.bytes"),
    _as_for_the_broker("message.timestamp.after.max.ms", "log.message.timestamp.after.max.ms"),
    _as_for_the_broker("message.timestamp.before.max.ms", "log.message.timestamp.before.max.ms"),
    _as_for_the_broker("message.timestamp.type", "log.message.timestamp.type"),
    _as_for_the_broker("max.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"),
    _as_for_the_broker("min.cleanable.dirty.ratio", "log.cleaner.min.cleanable.ratio"),
    _as_for_the_broker("min.compaction.lag.ms", "log.cleaner.min.compaction.lag.ms"),
    _as_for_the_broker("min.insync.replicas", "min.insync.replicas"),
    Setting(
        (),
        name=ATTACHED_END_OFFSETS,
        kind=Kind.LIST,
        check=_check_ends,
        internal=True,
        doc="The end offsets of the segments that the topic was attached with, as partition:offset. Set by `kbroker "
        "tier attach`.",
    ),
    Setting(
        -1,
        name=ATTACHED_LEADER_EPOCH,
        kind=Kind.INT,
        at_least=-1,
        at_most=MAX_ATTACHED_EPOCH,
        internal=True,
        doc="The last leader epoch of these segments. The first one of the topic is the next. Set by `kbroker tier "
        "attach`.",
    ),
    Setting(
        False,
        name="kbroker.read.only",
        kind=Kind.BOOLEAN,
        internal=True,  # described only where it is set: a stock topic has Kafka's settings
        doc="Whether the broker refuses to append records that clients produce to the topic, with POLICY_VIOLATION.",
    ),
    Setting(
        -1,
        name="kbroker.remote.flush.timestamp.ms",
        kind=Kind.LONG,
        at_least=-1,
        internal=True,
        doc="The broker copies records produced before this wall clock time to the tier as soon as possible. Set by "
        "`kbroker tier flush`.",
    ),
    Setting(
        (),
        name="kbroker.retention.leases",
        kind=Kind.LIST,
        check=fault,
        internal=True,
        doc="Offsets that retention keeps for a time, for jobs that read them. Set by `kbroker tier lease`.",
    ),
    Setting(
        False,
        kind=Kind.BOOLEAN,
        name="remote.log.copy.disable",
        doc="Whether a tiered topic stops copying segments. Segments in the tier can still be read, and still expire.",
    ),
    Setting(
        False,
        kind=Kind.BOOLEAN,
        name="remote.log.delete.on.disable",
        doc="Whether disabling remote.storage.enable deletes the topic's data in the tier. It cannot be disabled "
        "without this.",
    ),
    Setting(
        False,
        kind=Kind.BOOLEAN,
        name="remote.storage.enable",
        doc="Whether the topic is tiered: the broker copies its closed segments to the tier.",
    ),
    _as_for_the_broker("retention.bytes", "log.retention.bytes"),
    Setting(
        7 * DAY,
        name="retention.ms",
        kind=Kind.LONG,
        at_least=-1,
        synonyms=(("log.retention.ms", 1), ("log.retention.minutes", MINUTE), ("log.retention.hours", HOUR)),
        doc="The broker deletes closed segments that are older than this. -1 means no limit.",
    ),
    _as_for_the_broker("segment.bytes", "log.segment.bytes"),
    _as_for_the_broker("segment.index.bytes", "log.index.size.max.bytes"),
    Setting(
        0,
        name="segment.jitter.ms",
        kind=Kind.LONG,
        at_least=0,
        synonyms=(("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", HOUR)),
        doc="Maximum random time by which a segment rolls earlier, so that not all segments roll at once.",
    ),
    Setting(
        7 * DAY,
        name="segment.ms",
        kind=Kind.LONG,
        at_least=1,
        synonyms=(("log.roll.ms", 1), ("log.roll.hours", HOUR)),
        doc="Age at which the broker rolls a segment even if it is not full.",
    ),
    _as_for_the_broker("unclean.leader.election.enable", "unclean.leader.election.enable"),
    Setting(
        kind=Kind.INT,
        name="internal.segment.bytes",
        at_least=SMALLEST_SEGMENT_BYTES,
        internal=True,
        doc="Set by Kafka's own tests. It overrides segment.bytes.",
    ),
    _throttled("follower", "fetch"),
    _throttled("leader", "serve followers"),
    *without_effect("topic"),
)

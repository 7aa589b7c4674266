"""The options of `format("kbroker")`: those of Spark's Kafka source, with the same names and meaning, and the tier's.

Spark passes them as text and ignores the case of their names. All options are checked before the source contacts a
broker or a store. An unknown name is an error that suggests the nearest name, because an ignored misspelling would read
the wrong records.

Source  KafkaSourceProvider of spark-sql-kafka-0-10 4.0.0
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Final, NoReturn, TypeVar

from kbroker.config import Settings, client_properties
from kbroker.config.values import ConfigError, as_boolean
from kbroker.spark.errors import InvalidOption, KbrokerSourceError
from kbroker.spark.positions import (
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Edge,
    MalformedPositions,
    Partition,
    Position,
    parse_assignment,
    parse_positions,
)
from kbroker.spark.stores import StoreOptions, store_of

T = TypeVar("T")

logger = logging.getLogger("kbroker.spark")

KAFKA_PREFIX: Final = "kafka."
ISOLATION_LEVEL: Final = "isolation.level"
STORE_PREFIX: Final = "rsm.config."
STORE_CLASS: Final = "remote.log.storage.manager.class.name"
BOOTSTRAP_TIMEOUT_MS: Final = 10_000
DEFAULT_CHUNK_BYTES: Final = 8 << 20
LEAST_CHUNK_BYTES: Final = 64 << 10
MOST_CHUNK_BYTES: Final = 1 << 30  # the rows of a chunk must fit into one Arrow array of less than 2 GiB
MOST: Final = (1 << 63) - 1

SUBSCRIPTIONS: Final = ("subscribe", "subscribePattern", "assign")
KNOWN: Final = (
    *SUBSCRIPTIONS,
    "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy",
    "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp",
    "minPartitions", "maxRecordsPerPartition",
    "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay",
    "failOnDataLoss", "includeHeaders", "lease",
    STORE_CLASS, "kbroker.config", "kbroker.chunk.bytes",
)  # fmt: skip
"""All options except those that begin with `kafka.` and `rsm.config.`."""

_NAMES: Final = {name.lower(): name for name in KNOWN}
_UNITS_MS: Final = {
    "ms": 1, "msec": 1, "millisecond": 1, "milliseconds": 1,
    "s": 1000, "sec": 1000, "second": 1000, "seconds": 1000,
    "m": 60_000, "min": 60_000, "minute": 60_000, "minutes": 60_000,
    "h": 3_600_000, "hour": 3_600_000, "hours": 3_600_000,
    "d": 86_400_000, "day": 86_400_000, "days": 86_400_000,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Subscription:
    """The partitions to read: all of some topics, all of topics that match a pattern, or single ones.

    Shape  exactly one of the three fields is not empty
    """

    topics: tuple[str, ...] = ()
    pattern: str = ""
    partitions: tuple[Partition, ...] = ()

    def matches(self, topic: str) -> bool:
        """Whether a topic is subscribed."""
        if self.pattern:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in self.topics or any(topic == name for name, _ in self.partitions)

    def has(self, topic: str, partition: int) -> bool:
        """Whether a partition is subscribed."""
        return (topic, partition) in self.partitions if self.partitions else self.matches(topic)

    @property
    def names(self) -> tuple[str, ...] | None:
        """The topics that must exist; None for a pattern."""
        if self.pattern:
            return None
        return self.topics or tuple(dict.fromkeys(topic for topic, _ in self.partitions))


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The parsed options of a job.

    Shape  client are settings of `kbroker.client`, None if no broker is named: then the store is the only source;
           store is None if no store is named: then everything is fetched from the broker
    Shape  starting and ending are None if they are not given
    """

    subscription: Subscription
    client: Mapping[str, Any] | None = field(repr=False)
    store: StoreOptions | None
    starting: Position | None = None
    ending: Position | None = None
    latest_without_match: bool = False
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 15 * 60_000
    lease_ms: int = 10 * 60_000
    fail_on_data_loss: bool = True
    include_headers: bool = False
    chunk_bytes: int = DEFAULT_CHUNK_BYTES
    is_committed_only: bool = False

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Errors: InvalidOption."""
        given = _Given(options)
        is_committed_only = given.is_committed_only()
        client, store = given.client(), given.store()
        if client is None and store is None:
            _refuse(
                "neither a broker nor a store is named",
                "set kafka.bootstrap.servers, or the store's rsm.config.* as in the broker's settings, or both",
            )
        least, most = given.number("minOffsetsPerTrigger"), given.number("maxOffsetsPerTrigger")
        if least is not None and most is not None and least > most:
            _refuse(f"minOffsetsPerTrigger={least} is more than maxOffsetsPerTrigger={most}", "lower the first")
        strategy = given.texts.get("startingOffsetsByTimestampStrategy", "error").lower()
        if strategy not in {"error", "latest"}:
            _refuse(f"startingOffsetsByTimestampStrategy={strategy}", "set it to error or to latest")
        delay = given.texts.get("maxTriggerDelay")
        return cls(
            subscription=given.subscription(),
            client=client,
            store=store,
            starting=given.position("starting", Edge.EARLIEST, Edge.LATEST),
            ending=given.position("ending", Edge.LATEST),
            latest_without_match=strategy == "latest",
            min_partitions=given.number("minPartitions"),
            max_records_per_partition=given.number("maxRecordsPerPartition"),
            max_offsets_per_trigger=most,
            min_offsets_per_trigger=least,
            max_trigger_delay_ms=15 * 60_000 if delay is None else _duration_ms("maxTriggerDelay", delay),
            lease_ms=_duration_ms("lease", given.texts.get("lease", "10m")),
            fail_on_data_loss=given.boolean("failOnDataLoss", default=True),
            include_headers=given.boolean("includeHeaders", default=False),
            chunk_bytes=given.number("kbroker.chunk.bytes", at_least=LEAST_CHUNK_BYTES, at_most=MOST_CHUNK_BYTES)
            or DEFAULT_CHUNK_BYTES,
            is_committed_only=is_committed_only,
        )

    def for_batch(self) -> SourceOptions:
        """Adds the defaults of a batch query. Errors: InvalidOption for options that batch queries do not allow."""
        starting = Edge.EARLIEST if self.starting is None else self.starting
        ending = Edge.LATEST if self.ending is None else self.ending
        if starting is Edge.LATEST or (isinstance(starting, AtOffsets) and Edge.LATEST in starting.offsets.values()):
            _refuse("startingOffsets is latest in a batch query, which would read nothing", "set an earlier start")
        if isinstance(ending, AtOffsets) and Edge.EARLIEST in ending.offsets.values():
            _refuse("endingOffsets is earliest (-2), which would read nothing", "set a later end")
        return replace(self, starting=starting, ending=ending)

    def for_streaming(self) -> SourceOptions:
        """Adds the defaults of a streaming query. Errors: InvalidOption for options that streams do not allow."""
        if self.ending is not None:
            _refuse(
                "endingOffsets, endingTimestamp and endingOffsetsByTimestamp have no meaning in a streaming query",
                "remove them, or use spark.read",
            )
        return replace(self, starting=Edge.LATEST if self.starting is None else self.starting)

    def lose(self, error: KbrokerSourceError) -> None:
        """Raise the error for records that cannot be read, or only log it with failOnDataLoss=false."""
        if self.fail_on_data_loss:
            raise error
        logger.warning("%s (failOnDataLoss=false)", error)


def subscriptions_in(options: Mapping[str, str]) -> list[str]:
    """The names of the given options that subscribe to topics."""
    return [name for name in options if _NAMES.get(name.lower()) in SUBSCRIPTIONS]


class _Given:
    """The given options as text, by their canonical names."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.texts: dict[str, str] = {}
        self._kafka: dict[str, str] = {}
        self._store: dict[str, str] = {}
        for name, text in options.items():
            lowered = name.lower()
            if lowered.startswith(KAFKA_PREFIX):
                self._kafka[lowered.removeprefix(KAFKA_PREFIX)] = text
            elif lowered.startswith(STORE_PREFIX):
                self._store[lowered.removeprefix(STORE_PREFIX)] = text
            elif lowered in _NAMES:
                self.texts[_NAMES[lowered]] = text
            else:
                _unknown(name)

    def number(self, name: str, *, at_least: int = 1, at_most: int = MOST) -> int | None:
        text = self.texts.get(name)
        if text is None:
            return None
        if not re.fullmatch(r"\s*\d{1,19}\s*", text, re.ASCII) or not at_least <= int(text) <= at_most:
            limit = "" if at_most == MOST else f" and at most {at_most}"
            _refuse(f"{name}={text} is not a whole number of at least {at_least}{limit}", "correct it")
        return int(text)

    def boolean(self, name: str, *, default: bool) -> bool:
        text = self.texts.get(name)
        if text is None:
            return default
        if (flag := as_boolean(text)) is None:
            _refuse(f"{name}={text} is neither true nor false", "correct it")
        return flag

    def subscription(self) -> Subscription:
        given = [name for name in SUBSCRIPTIONS if name in self.texts]
        if len(given) != 1:
            said = f"{' and '.join(given)} are given together" if given else "no topic is named"
            _refuse(said, "set exactly one of subscribe, subscribePattern and assign")
        name, text = given[0], self.texts[given[0]]
        if name == "assign":
            return Subscription(partitions=_read(name, text, parse_assignment))
        if name == "subscribePattern":
            try:
                re.compile(text)
            except re.error as error:
                _refuse(f"subscribePattern={text} is not a regular expression: {error}", "correct it")
            if not text:
                _refuse("subscribePattern is empty", "give a regular expression, for example .* for all topics")
            return Subscription(pattern=text)
        topics = tuple(dict.fromkeys(one.strip() for one in text.split(",") if one.strip()))
        if not topics:
            _refuse("subscribe names no topic", "give the names of the topics, separated by commas")
        return Subscription(topics=topics)

    def position(self, edge: str, *edges: Edge) -> Position | None:
        """Where reading begins or ends. As in the Kafka source, one time overrides many, and times override offsets."""
        text = self.texts.get(f"{edge}Timestamp")
        if text is not None:
            if not re.fullmatch(r"\s*[+-]?\d{1,19}\s*", text, re.ASCII):
                _refuse(f"{edge}Timestamp={text} is not a number", "give the milliseconds since 1970-01-01 UTC")
            return AtTimestamp(_time_ms(f"{edge}Timestamp", int(text)))
        name = f"{edge}OffsetsByTimestamp"
        if name in self.texts:
            times = _read(name, self.texts[name], parse_positions)
            return AtTimestamps({partition: _time_ms(name, time_ms) for partition, time_ms in times.items()})
        name = f"{edge}Offsets"
        text = self.texts.get(name)
        if text is None:
            return None
        for one in edges:
            if text.strip().lower() == one.value:
                return one
        if not text.lstrip().startswith("{"):
            _refuse(f"{name}={text}", f"set it to {' or '.join(one.value for one in edges)}, or to offsets as JSON")
        offsets: dict[Partition, int | Edge] = {}
        for partition, offset in _read(name, text, parse_positions).items():
            if offset < -2:
                _refuse(f"{name} has offset {offset}", "offsets begin at 0; -2 means earliest and -1 latest")
            offsets[partition] = {-2: Edge.EARLIEST, -1: Edge.LATEST}.get(offset, offset)
        return AtOffsets(offsets)

    def is_committed_only(self) -> bool:
        """Takes kafka.isolation.level, which also applies without a broker; the default is Kafka's."""
        text = self._kafka.pop(ISOLATION_LEVEL, "read_uncommitted").strip().lower()
        if text not in {"read_committed", "read_uncommitted"}:
            _refuse(f"kafka.{ISOLATION_LEVEL}={text}", "set it to read_committed or read_uncommitted")
        return text == "read_committed"

    def client(self) -> dict[str, Any] | None:
        if "bootstrap.servers" not in self._kafka:
            if self._kafka:
                _refuse(
                    f"kafka.{next(iter(self._kafka))} is set, but no broker is named", "set kafka.bootstrap.servers"
                )
            return None
        servers = [one.strip() for one in self._kafka["bootstrap.servers"].split(",") if one.strip()]
        try:
            settings, others = client_properties.translate(self._kafka)
            for server in servers:
                client_properties.parse_server(server)
        except ConfigError as error:
            _refuse(f"kafka.*: {error}", "correct it")
        if others:
            _unknown(KAFKA_PREFIX + others[0])
        if not servers:
            _refuse("kafka.bootstrap.servers names no broker", "give host:port, or several separated by commas")
        return {"bootstrap_timeout_ms": BOOTSTRAP_TIMEOUT_MS, **settings, "bootstrap_servers": servers}

    def store(self) -> StoreOptions | None:
        class_name, file = self.texts.get(STORE_CLASS), self.texts.get("kbroker.config")
        if file is not None:
            found = _from_broker_settings(file)
            if class_name in (None, found.class_name):
                return StoreOptions(found.class_name, {**found.configs, **self._store})
        elif class_name is None and not self._store:
            return None
        return StoreOptions(class_name, self._store)


def _from_broker_settings(path: str) -> StoreOptions:
    """The store named by a broker's properties file."""
    try:
        with open(path, "rb") as file:
            settings = Settings.load(file.read(), file_name=path)
    except OSError as error:
        _refuse(f"kbroker.config={path}: {error.strerror or error}", "name a file that the driver can read")
    except ConfigError as error:
        _refuse(f"kbroker.config={path}: {error}", "name a file that a broker starts with")
    return store_of(settings)


def _time_ms(name: str, time_ms: int) -> int:
    """Refuses negative times, which are special values in ListOffsets, for example -1 for the log's end."""
    if not 0 <= time_ms < 1 << 63:
        _refuse(f"{name} has {time_ms}, which is not a time", "give the milliseconds since 1970-01-01 UTC")
    return time_ms


def _duration_ms(name: str, text: str) -> int:
    found = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", text.lower(), re.ASCII)
    if found is None or (found[2] or "ms") not in _UNITS_MS:
        _refuse(f"{name}={text} is not a duration", "write it like 30s, 15m or 500ms")
    return int(found[1]) * _UNITS_MS[found[2] or "ms"]


def _read(name: str, text: str, parse: Callable[[str], T]) -> T:
    try:
        return parse(text)
    except MalformedPositions as error:
        _refuse(f"{name}={text}: {error}", 'write it like {"topic": {"0": 23, "1": -2}}; assign like {"topic": [0, 1]}')


def _unknown(name: str) -> NoReturn:
    kafka = (KAFKA_PREFIX + one for one in (*client_properties.KNOWN, ISOLATION_LEVEL))
    names = {one.lower(): one for one in (*KNOWN, *kafka)}
    near = get_close_matches(name.lower(), names, n=1, cutoff=0.6)
    _refuse(f"there is no option {name}", f"did you mean {names[near[0]]}?" if near else "remove it, see docs/spark.md")


def _refuse(what: str, remedy: str) -> NoReturn:
    raise InvalidOption(what, remedy=remedy)

"""`kbroker tier attach`: make a topic of a running cluster out of the segments in a store whose cluster is gone.

The command looks at the store, reports what does not fit together, creates the topic, and records the segments in
`__remote_log_metadata`. The leaders then start their logs behind the segments (`kbroker.tiered.attaching`). The topic
begins in a leader epoch after those of the segments; only kbroker's controller can do that. A failed attempt deletes
the topic again. Nothing is ever written to or deleted from the objects in the store.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import closing
from itertools import islice
from typing import Any, Final
from uuid import UUID

from kbroker.cli import EXIT_FOUND, CommandFailed
from kbroker.cli._admin import admin_client, client_settings
from kbroker.cli._groups import log_offsets
from kbroker.cli._say import note, say, say_json
from kbroker.cli._table import print_rows
from kbroker.cli._tier_sources import BrokerSource
from kbroker.cli._tier_store import open_store
from kbroker.cli._topics import create_topic, delete_topics
from kbroker.client.cluster import Cluster, Partition
from kbroker.client.operations import EARLIEST, LATEST, PRODUCE_BY_NAME, produce_request
from kbroker.config.topic import ATTACHED_END_OFFSETS, ATTACHED_LEADER_EPOCH
from kbroker.metadata.names import REMOTE_LOG_METADATA_TOPIC
from kbroker.tiered.api import DELETED, RemoteStorageManager, TopicIdPartition
from kbroker.tiered.attachable import (
    AttachablePartition,
    StoredTopic,
    Until,
    attachable_partitions,
    events,
    stored_topics,
)
from kbroker.tiered.metadata_topic import encode_event, metadata_partition
from kbroker.tiered.scrubbing import read_inside
from wire.errors import ErrorCode, KafkaError, check
from wire.record_batch import Record, build_batch
from wire.types import uuid_to_text

EVENTS_IN_BATCH: Final = 500
ACKS_ALL: Final = -1
COLUMNS: Final = ("PARTITION", "START", "END", "SEGMENTS", "BYTES", "LEADER-EPOCH")
TOPIC_COLUMNS: Final = ("TOPIC", "TOPIC-ID", "PARTITIONS", "SEGMENTS", "UNUSABLE", "BYTES")
KEPT: Final = {"retention.ms": "-1", "retention.bytes": "-1"}
"""The old records of an attached topic would expire at once by the default retention."""


def attach(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Report and attach; return the exit code."""
    with open_store(parser, options) as storage:
        if not hasattr(storage, "list_objects") or not hasattr(storage, "read_manifest"):
            raise CommandFailed("this storage manager cannot describe what its store holds")
        name, topics = _chosen(storage, options)
        found = attachable_partitions(storage, topics, until=_until(options), is_partial=options.partial)
        target = options.new_name or name
        has_problems = _report(storage, found, options, target)
        if options.dry_run:
            return EXIT_FOUND if has_problems else 0
        if has_problems and not options.partial:
            raise CommandFailed(
                "nothing was attached because of these problems; --partial attaches the newest part of each partition "
                "that has no gap, --until and --until-offset attach what is before"
            )
        if not any(one.end_offset for one in found):
            raise CommandFailed("there is nothing to attach")
        with admin_client(options) as client:
            _refuse_own(client, client_settings(options), topics)
            _Attachment(client, target, found).make(options)
    if options.format == "text":
        note(f"kbroker tier: attached {target}" + ("" if options.writable else ", read-only"))
    return 0


# --- what is in the store ---------------------------------------------------------------------------------------------


def _chosen(storage: RemoteStorageManager, options: argparse.Namespace) -> tuple[str, list[StoredTopic]]:
    """The topic's name and its stored incarnations. Raises CommandFailed, with a list, if the choice is not clear."""
    found = stored_topics(storage, name=options.topic, topic_ids=options.topic_id or ())
    if missing := [uuid_to_text(one) for one in options.topic_id or () if one not in found]:
        raise CommandFailed(f"the store has no topic with the id {', '.join(missing)}")
    if not found:
        raise CommandFailed(f"{storage!r} has no segments" + (f" of {options.topic}" if options.topic else ""))
    if len(found) > 1 and not options.topic_id:
        _list_topics(found.values())
        why = "more than one topic id has this name" if options.topic else "the store has more than one topic"
        raise CommandFailed(f"{why}; choose with --topic or --topic-id (several ids, if one continues the other)")
    topics = list(found.values())
    return options.topic or topics[0].name, topics


def _list_topics(topics: Any) -> None:
    rows = []
    for one in sorted(topics, key=lambda one: one.name):
        partitions = {each.remote_log_segment_id.topic_id_partition.partition for each in one.segments}
        size = sum(each.segment_size_in_bytes for each in one.segments)
        rows.append((one.name, uuid_to_text(one.topic_id), len(partitions), len(one.segments), len(one.broken), size))
    print_rows(TOPIC_COLUMNS, rows)


def _until(options: argparse.Namespace) -> dict[int | None, Until]:
    ends: dict[int | None, int] = dict(options.until_offset or [])
    return {
        **{index: Until(offset, options.until) for index, offset in ends.items()},
        **({} if None in ends else {None: Until(timestamp_ms=options.until)}),
    }


def _report(
    storage: RemoteStorageManager, found: list[AttachablePartition], options: argparse.Namespace, target: str
) -> bool:
    """Print what would be attached, and the issues; return whether there are problems."""
    for one in found:
        if options.deep:
            for segment in one.segments:
                for finding in read_inside(storage, segment):
                    one.problem(finding.text)
    if options.format == "json":
        for one in found:
            for issue in one.issues:
                say_json({"kind": "note" if issue.is_note else "problem", **issue._asdict()})
        for one in found:
            say_json({"kind": "partition", "topic": target, **_row(one)})
    else:
        for one in found:
            for issue in one.issues:
                say(f"{target}-{one.index}: {'note: ' if issue.is_note else ''}{issue.text}")
        print_rows(COLUMNS, [tuple(_row(one).values()) for one in found])
    return any(not issue.is_note for one in found for issue in one.issues)


def _row(one: AttachablePartition) -> dict[str, int]:
    return {
        "partition": one.index,
        "start_offset": one.start_offset,
        "end_offset": one.end_offset,
        "segments": len(one.segments),
        "size_bytes": sum(each.segment_size_in_bytes for each in one.segments),
        "leader_epoch": one.leader_epoch,
    }


# --- the cluster ------------------------------------------------------------------------------------------------------


def _refuse_own(client: Cluster, settings: Mapping[str, Any], topics: list[StoredTopic]) -> None:
    """A topic of this cluster would delete objects of the attached one: by its retention, or because it was deleted."""
    own = {topic.topic_id: topic.name for topic in client.metadata(None).topics}
    with closing(BrokerSource(client, settings)) as source:
        segments = source.catalogue().segments.values()
    kept = {one.remote_log_segment_id.topic_id_partition.topic_id for one in segments if one.state is not DELETED}
    for one in topics:
        if one.topic_id in own:
            raise CommandFailed(f"{uuid_to_text(one.topic_id)} is the topic {own[one.topic_id]} of this cluster")
        if one.topic_id in kept:
            was = f"{uuid_to_text(one.topic_id)} was the topic {one.name} of this cluster"
            raise CommandFailed(f"{was}, which may still delete its objects")


class _Attachment:
    """The topic that is being made."""

    def __init__(self, client: Cluster, name: str, found: list[AttachablePartition]) -> None:
        self._client = client
        self._name = name
        self._found = found

    def make(self, options: argparse.Namespace) -> None:
        """Create the topic and wait until every replica has taken the segments over. Raises CommandFailed."""
        self._create(options)
        try:
            self._record(options.timeout_ms)
            self._wait(options.timeout_ms)
        except BaseException:
            delete_topics(self._client, [self._name])
            raise

    def _create(self, options: argparse.Namespace) -> None:
        ends = ",".join(f"{one.index}:{one.end_offset}" for one in self._found if one.end_offset)
        configs = {
            **KEPT,
            "remote.log.copy.disable": "false" if options.writable else "true",
            **dict(options.topic_config or []),
            "remote.storage.enable": "true",
            ATTACHED_END_OFFSETS: ends,
            ATTACHED_LEADER_EPOCH: str(max(one.leader_epoch for one in self._found)),
            "kbroker.read.only": "false" if options.writable else "true",
        }
        try:
            create_topic(
                self._client,
                self._name,
                partitions=max(len(self._found), options.partitions or 0),
                replication_factor=options.replication_factor,
                assignment=[],
                configs=configs,
                if_not_exists=False,
            )
        except KafkaError as error:
            if error.code is ErrorCode.INVALID_CONFIG and "kbroker." in error.message:
                raise CommandFailed(
                    f"only a cluster with controllers of kbroker can attach: {error.message}"
                ) from error
            raise

    def _until(self, what: str, attempt: Any, timeout_ms: int) -> Any:
        deadline = self._client.env.now_ms() + timeout_ms
        while not (found := attempt()):
            if self._client.env.now_ms() > deadline:
                raise CommandFailed(f"{what} within {timeout_ms} ms; nothing was attached")
            self._client.wait(self._client.retry_ms)
        return found

    def _record(self, timeout_ms: int) -> None:
        """Write the metadata of the segments. The broker creates the topic for them."""

        def metadata_partitions() -> int:
            self._client.metadata([self._name])
            (topic,) = self._client.metadata([REMOTE_LOG_METADATA_TOPIC]).topics
            return len(topic.partitions)

        what = f"the cluster did not create {REMOTE_LOG_METADATA_TOPIC}"
        count = self._until(what, metadata_partitions, timeout_ms)
        topic_id = self._until("the topic is unknown", self._topic_id, timeout_ms)
        ids = iter(self._client.env.new_uuid, None)
        for one in self._found:
            named = TopicIdPartition(topic_id, self._name, one.index)
            values = map(encode_event, events(one, named, ids))
            now_ms = self._client.env.timestamp_ms()
            place = REMOTE_LOG_METADATA_TOPIC, metadata_partition(named, count)
            while batch := [Record(-1, now_ms, None, each) for each in islice(values, EVENTS_IN_BATCH)]:
                self._produce(place, build_batch(batch))

    def _topic_id(self) -> UUID | None:
        (topic,) = self._client.metadata([self._name]).topics
        return None if topic.error_code else topic.topic_id

    def _produce(self, place: Partition, batch: bytes) -> None:
        """Append a batch. A repetition after a lost answer does no harm: every state may be recorded again."""

        def attempt() -> None:
            request = produce_request({place: batch}, acks=ACKS_ALL, timeout_ms=self._client.timeout_ms)
            answer = self._client.ask(request, self._client.leader(place), at_most=PRODUCE_BY_NAME)
            (topic,) = answer.responses
            (partition,) = topic.partition_responses
            check(partition.error_code, partition.error_message)

        self._client.retry(attempt, [place])

    def _wait(self, timeout_ms: int) -> None:
        """Wait until the leaders have taken the segments over, and the in-sync replicas have followed them."""
        ends = {(self._name, one.index): one for one in self._found if one.end_offset}

        def is_done() -> bool:
            starts, latest = (log_offsets(self._client, ends, which) for which in (EARLIEST, LATEST))
            # Markers of aborted transactions may follow the end, and retention may have raised the start.
            return all(
                starts.get(at, -1) >= one.start_offset and latest.get(at, -1) >= one.end_offset
                for at, one in ends.items()
            )

        self._until(
            "the brokers did not take the segments over, perhaps because their store is another one (see their logs);",
            is_done,
            timeout_ms,
        )

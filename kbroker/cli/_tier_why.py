"""`kbroker tier why`: explain for each segment in a data directory why it is still there."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, NamedTuple

from kbroker.cli import CommandFailed
from kbroker.cli._dump_output import Problems
from kbroker.cli._say import note, say_json
from kbroker.cli._table import print_rows
from kbroker.cli._tier_directory import DirectorySource
from kbroker.cli._tier_ls import warn
from kbroker.cli._tier_sources import choose
from kbroker.cli.serve import HTTP_TOKEN_VARIABLE, load_settings
from kbroker.config import Settings
from kbroker.config.observability import http_address
from kbroker.metadata.names import is_tierable
from kbroker.runtime.clocks import RealClocks
from kbroker.storage.batch_reader import BatchReader
from kbroker.storage.checkpoint import read_file
from kbroker.storage.index import TIME_ENTRY
from kbroker.storage.leader_epoch import EPOCH_CHECKPOINT, parse_epochs
from kbroker.storage.loader import offset_of
from kbroker.storage.log_config import LogConfig
from kbroker.storage.retention import judge, local_limits
from kbroker.storage.segment import LOG_SUFFIX, TIME_INDEX_SUFFIX, file_name
from kbroker.storage.verifying import index_entries
from kbroker.tiered.catalogue import Catalogue, Partition
from kbroker.tiered.kept import KeptSegment, TierView, why_kept
from kbroker.tiered.plan import Lineage

COLUMNS = ("TOPIC", "PARTITION", "BASE-OFFSET", "END-OFFSET", "BYTES", "IN-TIER", "WHY", "MORE")
HTTP_TIMEOUT_SECONDS = 10


class _Segment(NamedTuple):
    base_offset: int
    size: int


def why(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Print a line for each local segment of the chosen partitions, or of all tiered ones."""
    del parser
    settings = load_settings(options)
    source = DirectorySource(str(options.data_dir))
    wanted = choose(source, options.topic)
    live = _live(options.http, settings)
    explained = _Explained(source, settings, live)
    for partition in explained.tiered_partitions() if wanted is None else wanted:
        segments = explained.partition(partition)
        if options.format == "json":
            for one in segments:
                say_json(_as_json(partition, one))
        else:
            print_rows(COLUMNS, [(*partition, *_row(one)) for one in segments])


def _row(one: KeptSegment) -> tuple[object, ...]:
    segment, when = one.verdict, ""
    if segment.due_ms is not None:
        when = f"; due {datetime.fromtimestamp(segment.due_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    is_copied = "yes" if segment.is_copied else "no"
    return segment.base_offset, segment.end_offset, segment.size, is_copied, one.why.value, one.text + when


def _as_json(partition: Partition, one: KeptSegment) -> dict[str, Any]:
    segment = one.verdict
    return {
        "topic": partition[0],
        "partition": partition[1],
        "base_offset": segment.base_offset,
        "end_offset": segment.end_offset,
        "size_bytes": segment.size,
        "is_copied": segment.is_copied,
        "why": one.why.value,
        "text": one.text,
        "due_ms": segment.due_ms,
    }


def _live(address: str | None, settings: Settings) -> Mapping[Partition, Mapping[str, Any]]:
    """The partitions in the broker's /state; empty if no broker answers. With a given address, that is an error."""
    asked = address or settings.observability.kbroker_http_listener
    try:
        return {} if asked is None else broker_state(asked)
    except CommandFailed as error:
        if address is not None:
            raise
        note(f"kbroker tier: cannot read the broker's state: {error}")
        return {}


def broker_state(address: str) -> Mapping[Partition, Mapping[str, Any]]:
    """The partitions in the /state of the broker with these pages. Raises CommandFailed.

    The token of the pages is in the environment. With https:// before the address, Python's certificates are trusted.
    """
    try:
        host, port = http_address(address.removeprefix("http://").removeprefix("https://").rstrip("/"))
        kind = HTTPSConnection if address.startswith("https://") else HTTPConnection
        token = os.environ.get(HTTP_TOKEN_VARIABLE)
        with closing(kind(host, port, timeout=HTTP_TIMEOUT_SECONDS)) as connection:
            connection.request("GET", "/state", headers={"Authorization": f"Bearer {token}"} if token else {})
            response = connection.getresponse()
            data = response.read()
            if response.status == 401:
                raise ValueError(f"the pages need a token: set {HTTP_TOKEN_VARIABLE}")
            if response.status != 200:
                raise ValueError(f"/state answers {response.status}")
            state = json.loads(data)
            return {(each["topic"], each["partition"]): each for each in state["partitions"]}
    except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
        raise CommandFailed(f"{address}: {error}") from error


class _Explained:
    """Explains the partitions of one directory."""

    def __init__(
        self, source: DirectorySource, settings: Settings, live: Mapping[Partition, Mapping[str, Any]]
    ) -> None:
        self._source = source
        self._live = live
        self._image = source.image()
        self._settings = settings.with_dynamic(
            self._image.broker_configs(None), self._image.broker_configs(settings.node_id)
        )
        self._catalogue: Catalogue = source.catalogue()
        warn(self._catalogue)
        self._starts = source.reading(source.log_starts)
        self._now_ms = RealClocks().timestamp_ms()

    def tiered_partitions(self) -> list[Partition]:
        """The partitions of tiered topics."""
        return [
            (topic, index)
            for topic, indexes in self._source.partitions().items()
            if self._config(topic).remote_storage_enable and is_tierable(topic)
            for index in indexes
        ]

    def _config(self, topic: str) -> LogConfig:
        return self._settings.log_config(self._image.topic_configs(topic), LogConfig)

    def partition(self, partition: Partition) -> list[KeptSegment]:
        """The segments of a partition in order. If the broker deletes one during the read, this reads them again."""
        return self._source.reading(lambda: self._partition(partition))

    def _partition(self, partition: Partition) -> list[KeptSegment]:
        directory = f"{self._source.path}/{partition[0]}-{partition[1]}"
        disk, config, live = self._source.disk, self._config(partition[0]), self._live.get(partition, {})
        segments = [
            _Segment(base, disk.size(f"{directory}/{name}"))
            for name in disk.list(directory)
            if (base := offset_of(name, LOG_SUFFIX)) is not None
        ]
        if not segments:
            return []
        log_start = self._starts.get(partition, 0)
        end = self._source.end_of(f"{directory}/{file_name(segments[-1].base_offset, LOG_SUFFIX)}")
        tier = self._tier(partition, config, directory, end, live)
        high_watermark = _number(live, "high_watermark", end)
        verdicts = judge(
            segments,
            largest_timestamp=lambda at: self._largest_timestamp(directory, segments[at].base_offset),
            limits=local_limits(config, is_copied=tier.is_copied),
            log_start_offset=_number(live, "log_start_offset", log_start),
            log_end_offset=end,
            high_watermark=high_watermark,
            timestamp_ms=self._now_ms,
            waits_for_copy=tier.is_copied,
            highest_offset_in_remote_storage=tier.highest_offset_in_remote_storage if tier.is_tiered else None,
            leased_from=config.held_from(partition[1], self._now_ms),
        )
        stable = _number(live, "last_stable_offset", end)
        return why_kept(verdicts, config, tier, high_watermark=high_watermark, last_stable_offset=stable)

    def _tier(
        self, partition: Partition, config: LogConfig, directory: str, end: int, live: Mapping[str, Any]
    ) -> TierView:
        remote = live.get("remote")
        if remote is not None:
            highest = remote["highest_offset_in_remote_storage"]
            return TierView(True, remote["copies"], highest, remote["last_error"] or "", remote["waits_for_quota"])
        try:
            epochs = parse_epochs(read_file(self._source.disk, f"{directory}/{EPOCH_CHECKPOINT}").decode())
        except (FileNotFoundError, ValueError):
            epochs = []
        lineage = Lineage(epochs, log_end_offset=end)
        known = [
            each
            for each in self._catalogue.of([partition])
            if each.remote_log_segment_id.id in self._catalogue.copied and each in lineage
        ]
        return TierView(
            is_tiered=config.remote_storage_enable and self._settings.tier.remote_log_storage_system_enable,
            copies=not config.remote_log_copy_disable,
            highest_offset_in_remote_storage=max((each.end_offset for each in known), default=-1),
        )

    def _largest_timestamp(self, directory: str, base_offset: int) -> int:
        """The largest timestamp by the last entry of the time index, or by the log if the index is empty."""
        path = f"{directory}/{file_name(base_offset, TIME_INDEX_SUFFIX)}"
        try:
            entries = index_entries(self._source.disk, path, TIME_ENTRY, Problems())
        except FileNotFoundError:
            entries = []
        if entries:
            return entries[-1][0]
        log = f"{directory}/{file_name(base_offset, LOG_SUFFIX)}"
        with closing(self._source.disk.open(log, writable=False)) as file:
            return max((batch.max_timestamp for batch in BatchReader(file)), default=-1)


def _number(live: Mapping[str, Any], name: str, otherwise: int) -> int:
    value = live.get(name)
    return otherwise if value is None else int(value)

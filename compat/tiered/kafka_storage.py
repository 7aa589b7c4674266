"""A storage plug-in with the layout of LocalTieredStorage, the directory tier of Apache Kafka's own tests.

With it a broker of Apache Kafka and one of kbroker share a tier. It is only for tests: like the original it neither
syncs nor verifies what it stores, and a copy that is cut off leaves files that look complete.

    <dir>/kafka-tiered-storage/<topic>-<partition>-<topic id>/<first offset>-<segment id>.<kind>
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from kbroker.tiered.api import (
    IndexType,
    LogSegmentData,
    RemoteLogSegmentMetadata,
    RemoteResourceNotFound,
)
from kbroker.tiered.layout import SEGMENT, sources
from wire.types import uuid_to_text

ROOT: Final = "kafka-tiered-storage"
KINDS: Final = {IndexType.LEADER_EPOCH.value: "leader_epoch_checkpoint"}
"""The kinds that have another suffix than in kbroker's layout."""


class KafkaDirectory:
    """`remote.log.storage.manager.class.name=compat.tiered.kafka_storage:KafkaDirectory`."""

    def __init__(self) -> None:
        self._root = Path()

    def configure(self, configs: Mapping[str, str]) -> None:
        self._root = Path(configs["dir"]) / ROOT

    def close(self) -> None:
        """Nothing is open."""

    def _path(self, metadata: RemoteLogSegmentMetadata, kind: str) -> Path:
        named = metadata.remote_log_segment_id.topic_id_partition
        directory = f"{named.topic}-{named.partition}-{uuid_to_text(named.topic_id)}"
        name = f"{metadata.start_offset:020d}-{uuid_to_text(metadata.remote_log_segment_id.id)}"
        return self._root / directory / f"{name}.{KINDS.get(kind, kind)}"

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes | None:
        for kind, source in sources(data).items():
            path = self._path(metadata, kind)
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(source, str):
                shutil.copyfile(source, path)
            else:
                path.write_bytes(source)
        return None

    def _read(self, metadata: RemoteLogSegmentMetadata, kind: str) -> bytes:
        try:
            return self._path(metadata, kind).read_bytes()
        except FileNotFoundError as error:
            raise RemoteResourceNotFound(str(error)) from error

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int | None = None
    ) -> BinaryIO:
        data = self._read(metadata, SEGMENT)
        return io.BytesIO(data[start_position : None if end_position is None else end_position + 1])

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        return self._read(metadata, index_type.value)

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        for kind in (SEGMENT, *(index_type.value for index_type in IndexType)):
            with suppress(FileNotFoundError):
                self._path(metadata, kind).unlink()

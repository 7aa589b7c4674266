"""`kbroker tier cat`: print one segment of the tier from its store."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, BinaryIO, cast

from kbroker.cli import CommandFailed
from kbroker.cli._dump_logs import LogOptions, dump_log
from kbroker.cli._dump_output import KafkaLines, Problems
from kbroker.cli._payloads import plain
from kbroker.cli._records import record_to_json
from kbroker.cli._say import note, records_out
from kbroker.cli._tier_ls import warn
from kbroker.cli._tier_sources import open_source
from kbroker.cli._tier_store import open_store
from kbroker.client.consuming import Received
from kbroker.storage.batch_reader import BatchReader
from kbroker.storage.index import CorruptIndex
from kbroker.storage.segment import LOG_SUFFIX, file_name
from kbroker.tiered.api import IndexType, RemoteLogSegmentMetadata, RemoteResourceNotFound, RemoteStorageManager
from kbroker.tiered.catalogue import Catalogue, name_of, partition_of
from kbroker.tiered.indexes import RemoteIndexes, checked_offsets
from kbroker.tiered.segment_files import FETCH_BYTES, RemoteFile
from wire.batch_header import HEADER_SIZE
from wire.errors import Malformed
from wire.record_batch import RecordBatch


def cat(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Print a segment; return the exit code."""
    _check(parser, options)
    render = _render(options)
    with open_store(parser, options) as storage:
        with open_source(options) as source:
            catalogue = source.catalogue()
        warn(catalogue)
        segment = _find(catalogue, options)
        out = records_out(is_json=options.format == "json")
        if options.index is not None:
            out.write(storage.fetch_index(segment, IndexType(options.index)))
        elif options.format == "raw":
            _copy(storage, segment, out)
        elif options.format == "dump":
            return _dump(storage, segment)
        else:
            for record in islice(_records(storage, segment, options.offset or 0), options.count):
                out.write(render(record))
        out.flush()
    return 0


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if (options.segment is None) == (options.topic is None):
        parser.error("one of --segment or --topic with --offset is required")
    if options.topic is not None and options.offset is None:
        parser.error("--topic requires --offset")
    is_whole = options.index is not None or options.format in {"raw", "dump"}
    if is_whole and (options.count is not None or options.output_format is not None):
        parser.error("--count and --output-format can be used only with records, not with whole files")
    if options.index is not None and options.format not in {"text", "raw"}:
        parser.error(f"--index cannot be used with --format {options.format}")
    if options.output_format is not None and options.format == "json":
        parser.error("--output-format cannot be used with --format json")


def _render(options: argparse.Namespace) -> Callable[[Any], bytes]:
    if options.output_format is not None:
        return cast("Callable[[Any], bytes]", options.output_format)
    if options.format == "json":
        return lambda record: record_to_json(record) + b"\n"
    delimiter: bytes = options.delimiter
    return lambda record: (record.value or b"") + delimiter


def _find(catalogue: Catalogue, options: argparse.Namespace) -> RemoteLogSegmentMetadata:
    if options.segment is not None:
        found = catalogue.segments.get(options.segment)
        if found is None:
            raise CommandFailed("the metadata have no segment with this id")
        return found
    partition = options.topic, options.partition
    found = catalogue.segment_at(partition, options.offset)
    if found is None:
        name = f"{partition[0]}-{partition[1]}"
        raise CommandFailed(f"no finished segment of {name} in the tier contains offset {options.offset}")
    return found


def _file(storage: RemoteStorageManager, segment: RemoteLogSegmentMetadata) -> RemoteFile:
    topic, partition = partition_of(segment)
    return RemoteFile(storage, segment, f"{topic}-{partition}/{file_name(segment.start_offset, LOG_SUFFIX)}")


def _copy(storage: RemoteStorageManager, segment: RemoteLogSegmentMetadata, out: BinaryIO) -> None:
    with storage.fetch_log_segment(segment, 0) as stream:
        while data := stream.read(FETCH_BYTES):
            out.write(data)


def _dump(storage: RemoteStorageManager, segment: RemoteLogSegmentMetadata) -> int:
    problems = Problems()
    printer = KafkaLines()
    file = _file(storage, segment)
    printer.line(f"Dumping {file.path}", "file", path=file.path)
    dump_log(file, printer, problems, LogOptions(True, plain(), segment.segment_size_in_bytes))
    sys.stdout.flush()
    return 1 if problems.count else 0


def _records(storage: RemoteStorageManager, segment: RemoteLogSegmentMetadata, first: int) -> Iterator[Received]:
    """The records from an offset on. Raises CommandFailed at damage, after the records before it."""
    topic, partition = partition_of(segment)
    reader = BatchReader(_file(storage, segment), _position(storage, segment, first))
    for batch in reader:
        if batch.last_offset < first or batch.is_control:
            continue
        if not batch.crc_is_valid():
            raise CommandFailed(f"{name_of(segment)}: the batch at offset {batch.base_offset} has a wrong CRC")
        try:
            for offset, timestamp, key, value, headers in batch.records():
                if offset >= first:
                    at = batch.max_timestamp if batch.is_log_append_time else timestamp
                    kind = int(batch.is_log_append_time)
                    yield Received(topic, partition, offset, at, kind, key, value, tuple(headers))
        except Malformed as error:
            where = f"{name_of(segment)}: the batch at offset {batch.base_offset}"
            raise CommandFailed(f"{where} cannot be read: {error}") from error
    if reader.error is not None:
        raise CommandFailed(f"{name_of(segment)}: at byte {reader.position}: {reader.error}")


def _position(storage: RemoteStorageManager, segment: RemoteLogSegmentMetadata, first: int) -> int:
    """The byte position at which to start reading: from the index if it is correct, otherwise 0."""
    if first <= segment.start_offset:
        return 0
    try:
        index = checked_offsets(storage.fetch_index(segment, IndexType.OFFSET), segment)
        found = RemoteIndexes(segment.start_offset, index, b"", b"").floor_offset(first)
        if found is not None:
            header = RecordBatch(_file(storage, segment).pread(HEADER_SIZE, found.position))
            return found.position if header.last_offset == found.last_offset else 0
    except (RemoteResourceNotFound, CorruptIndex, Malformed) as error:
        note(f"kbroker tier: the offset index cannot be used: {error}")
    return 0

"""Dump what holds record batches: log segments, the metadata log's segments and snapshots.

The file is read in pieces of a few MiB, never as a whole, and only as far as it reached when the dump began (a batch
that was being appended at that moment is read once it is whole). A batch with a wrong CRC is shown and told of; bytes
that cannot be a batch end the dump of the file, because where the next batch begins is then unknown.

Source: DumpLogSegments, ControlRecordType and ControlRecordUtils of Apache Kafka 4.3.1.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from kbroker.cli._dump_output import Control, Printer, Problems
from kbroker.cli._message_json import message_to_json
from kbroker.cli._payloads import Decoder, Payload
from kbroker.runtime.ports import File
from wire.codec import decode
from wire.errors import Malformed
from wire.record_batch import HEADER_SIZE, Record, RecordBatch
from wire.schema import schema_of
from wire.stored import control
from wire.stored.frame import decode_value

CHUNK_BYTES: Final = 4 << 20
NO_LIMIT: Final = 0x7FFF_FFFF
BOOTSTRAP_FILE: Final = "bootstrap.checkpoint"

_SNAPSHOT_NAME: Final = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_OFFSET_NAME: Final = re.compile(r"(\d+)\.")
_CONTROL_KEY: Final = struct.Struct(">hh")
_QUORUM_RECORDS: Final[dict[int, tuple[str, type]]] = {
    2: ("LeaderChange", control.LeaderChangeMessage),
    3: ("SnapshotHeader", control.SnapshotHeaderRecord),
    4: ("SnapshotFooter", control.SnapshotFooterRecord),
    5: ("KRaftVersion", control.KRaftVersionRecord),
    6: ("KRaftVoters", control.VotersRecord),
}


class LogOptions(NamedTuple):
    """How deep a log is dumped; `decoder` is None when contents are not printed."""

    is_deep: bool
    decoder: Decoder | None
    max_bytes: int


class BatchReader:
    """The batches of a file from a position on, in its order.

    When the iteration is over, `position` is where it stopped and `error` what is wrong there; None at the end of the
    file or of the limit.
    """

    def __init__(self, file: File, position: int = 0, *, max_bytes: int = NO_LIMIT) -> None:
        self._file = file
        self.position = position
        self.end = min(file.size(), max_bytes) if max_bytes < NO_LIMIT else file.size()
        self._is_limited = max_bytes < NO_LIMIT
        self.error: str | None = None

    def __iter__(self) -> Iterator[RecordBatch]:
        chunk, chunk_start = memoryview(b""), self.position
        while self.position < self.end:
            at = self.position - chunk_start
            try:
                if at + HEADER_SIZE > len(chunk):
                    chunk, chunk_start, at = self._read(CHUNK_BYTES), self.position, 0
                batch = RecordBatch(chunk, at)
                if not batch.is_whole:
                    chunk, chunk_start = self._read(max(batch.size, CHUNK_BYTES)), self.position
                    batch = RecordBatch(chunk, 0)
                if not batch.is_whole:
                    raise Malformed(f"a batch of {batch.size} bytes, but {len(chunk)} are there")
            except Malformed as error:
                self.error = None if self._is_limited else self._explain(str(error))
                return
            yield batch
            self.position += batch.size

    def _read(self, size: int) -> memoryview:
        """Bytes from the position; beyond the end as it was, if the file has grown meanwhile and they are asked for."""
        limit = self.end if self._is_limited else max(self.end, self._file.size())
        return memoryview(self._file.pread(min(size, limit - self.position), self.position))

    def _explain(self, error: str) -> str:
        size = self.end - self.position
        position = self.position
        while position < self.end:
            piece = self._file.pread(min(CHUNK_BYTES, self.end - position), position)
            if not piece or any(piece):
                return f"{error}; {size} bytes are left"
            position += len(piece)
        return f"{size} bytes of zeros: space allocated ahead, or data that a loss of power took"


def dump_log(file: File, printer: Printer, problems: Problems, options: LogOptions) -> None:
    """Print a segment or a snapshot, and tell of what is wrong with it."""
    name = file.path.rpartition("/")[2]
    _print_start(name, printer)
    reader = BatchReader(file, max_bytes=options.max_bytes)
    expected: int | None = None
    for batch in reader:
        is_valid = batch.crc_is_valid()
        printer.batch(batch, reader.position, is_valid=is_valid)
        if not is_valid:
            problems.add(file.path, f"the batch at offset {batch.base_offset} has a wrong CRC", position=reader.position)
        if not options.is_deep:
            continue
        try:
            for record in batch.records():
                if expected is not None and record.offset != expected:
                    problems.hint(file.path, f"non-consecutive offsets: {expected - 1} is followed by {record.offset}")
                expected = record.offset + 1
                _print_record(batch, record, printer, options.decoder, problems, file.path)
        except Malformed as error:
            problems.add(
                file.path, f"the records of the batch at offset {batch.base_offset} cannot be read: {error}",
                position=reader.position,
            )  # fmt: skip
    if reader.error is not None:
        printer.trailing(name, reader.end - reader.position)
        problems.add(file.path, reader.error, position=reader.position)


def _print_start(name: str, printer: Printer) -> None:
    if name == BOOTSTRAP_FILE:
        printer.bootstrap()
    elif match := _SNAPSHOT_NAME.match(name):
        printer.snapshot(int(match[1]), int(match[2]))
    elif match := _OFFSET_NAME.match(name):
        printer.log_start(int(match[1]))


def _print_record(
    batch: RecordBatch, record: Record, printer: Printer, decoder: Decoder | None, problems: Problems, path: str
) -> None:
    if batch.is_control:
        printer.record(batch, record, None, read_control(record))
        return
    payload = None
    if decoder is not None:
        try:
            payload = decoder(record)
        except Malformed as error:
            payload = Payload(None, f"Error at offset {record.offset}, skipping. {error}")
            problems.add(path, f"the record at offset {record.offset} cannot be decoded: {error}")
    printer.record(batch, record, payload, None)


def read_control(record: Record) -> Control:
    """What a control record says. Raises Malformed when its key or value cannot be read."""
    if record.key is None or len(record.key) < _CONTROL_KEY.size:
        raise Malformed("a control record without a type")
    number: int = _CONTROL_KEY.unpack_from(record.key)[1]
    value = record.value or b""
    if number in (0, 1):
        marker = decode_value(control.EndTxnMarker, value)
        return Control("COMMIT" if number else "ABORT", number, message_to_json(marker, 0))
    if number not in _QUORUM_RECORDS:
        return Control("UNKNOWN", number, None)
    name, cls = _QUORUM_RECORDS[number]
    return Control(name, number, _quorum_fields(cls, value))


def _quorum_fields(cls: type, value: bytes) -> dict[str, Any]:
    # The version is the body's first field, so it is read where it stands.
    version = int.from_bytes(value[:2], "big", signed=True)
    if version not in schema_of(cls).versions:
        raise Malformed(f"{cls.__name__} version {version} is unknown")
    return message_to_json(decode(cls, version, value), version)

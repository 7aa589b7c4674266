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

    def __init__(
        self, file: File, position: int = 0, *, max_bytes: int = NO_LIMIT, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        self._file = file
        self._chunk_bytes = chunk_bytes
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
                    chunk, chunk_start, at = self._read(self._chunk_bytes), self.position, 0
                batch = RecordBatch(chunk, at)
                if not batch.is_whole:
                    chunk, chunk_start = self._read(max(batch.size, self._chunk_bytes)), self.position
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
    records = _Records(file.path, printer, problems, options.decoder)
    reader = BatchReader(file, max_bytes=options.max_bytes)
    for batch in reader:
        is_valid = batch.crc_is_valid()
        printer.batch(batch, reader.position, is_valid=is_valid)
        if not is_valid:
            text = f"the batch at offset {batch.base_offset} has a wrong CRC"
            problems.add(file.path, text, position=reader.position)
        if options.is_deep:
            records.print(batch, reader.position)
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


class _Records:
    """Prints the records of one file's batches, and watches that their offsets follow one another."""

    def __init__(self, path: str, printer: Printer, problems: Problems, decoder: Decoder | None) -> None:
        self._path = path
        self._printer = printer
        self._problems = problems
        self._decoder = decoder
        self._expected: int | None = None

    def print(self, batch: RecordBatch, position: int) -> None:
        try:
            for record in batch.records():
                if self._expected is not None and self._expected != record.offset:
                    text = f"non-consecutive offsets: {self._expected - 1} is followed by {record.offset}"
                    self._problems.hint(self._path, text)
                self._expected = record.offset + 1
                if batch.is_control:
                    self._printer.record(batch, record, None, read_control(record))
                else:
                    self._printer.record(batch, record, self._payload(record), None)
        except Malformed as error:
            text = f"the records of the batch at offset {batch.base_offset} cannot be read: {error}"
            self._problems.add(self._path, text, position=position)

    def _payload(self, record: Record) -> Payload | None:
        if self._decoder is None:
            return None
        try:
            return self._decoder(record)
        except Malformed as error:
            self._problems.add(self._path, f"the record at offset {record.offset} cannot be decoded: {error}")
            return Payload(None, f"Error at offset {record.offset}, skipping. {error}")


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

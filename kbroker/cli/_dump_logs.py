"""Dumps files of record batches: log segments, and the segments and snapshots of the metadata log.

The dump ends at the file's size at its start; a batch that was being appended then is read when it is complete. A batch
with a wrong CRC is printed and reported. Bytes that cannot be a batch end the dump of the file.

Source: DumpLogSegments of Apache Kafka 4.3.1.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from kbroker.cli._dump_output import Control, Printer, Problems
from kbroker.cli._message_json import message_to_json
from kbroker.cli._payloads import Decoder, Payload
from kbroker.runtime.ports import ReadableFile
from kbroker.storage.batch_reader import BatchReader
from kbroker.storage.control_records import read_control
from wire.errors import Malformed
from wire.record_batch import Record, RecordBatch

BOOTSTRAP_FILE: Final = "bootstrap.checkpoint"

_SNAPSHOT_NAME: Final = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_OFFSET_NAME: Final = re.compile(r"(\d+)\.")


class LogOptions(NamedTuple):
    """What to dump of a log; `decoder` is None if contents are not printed."""

    is_deep: bool
    decoder: Decoder | None
    max_bytes: int


def dump_log(file: ReadableFile, printer: Printer, problems: Problems, options: LogOptions) -> None:
    """Print a segment or a snapshot, and report its problems."""
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
        size = reader.end - reader.position
        printer.line(f"Found {size} invalid bytes at the end of {name}", "trailing", name=name, size=size)
        problems.add(file.path, reader.error, position=reader.position)


def _print_start(name: str, printer: Printer) -> None:
    if name == BOOTSTRAP_FILE:
        printer.line("KRaft bootstrap snapshot", "bootstrap")
    elif match := _SNAPSHOT_NAME.match(name):
        end, epoch = int(match[1]), int(match[2])
        printer.line(f"Snapshot end offset: {end}, epoch: {epoch}", "snapshot", endOffset=end, epoch=epoch)
    elif match := _OFFSET_NAME.match(name):
        printer.line(f"Log starting offset: {int(match[1])}", "log", startOffset=int(match[1]))


class _Records:
    """Prints the records of one file's batches, and checks that their offsets are consecutive."""

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
                    self._printer.record(batch, record, None, _control(record))
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


def _control(record: Record) -> Control:
    """The printed form of a control record. Raises Malformed if its key or value cannot be read."""
    read = read_control(record)
    fields = None if read.message is None else message_to_json(read.message, read.version)
    return Control(read.kind, read.type_number, fields)

"""Prints a dump in the lines of Kafka's tool or as one JSON object per line, and reports problems on stderr.

Both printers have the same methods, so the code that reads files is independent of the format. Names are Kafka's.

Source: the lines of DumpLogSegments of Apache Kafka 4.3.1.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TextIO, TypeAlias, TypeVar

from kbroker.cli._message_json import dump_json
from kbroker.cli._payloads import Payload, Shown, text
from kbroker.cli._records import lossless
from kbroker.cli._say import note, visible_writer
from kbroker.runtime.ports import ReadableDisk
from kbroker.runtime.visible import visible_json, visible_lines
from kbroker.storage.checkpoint import read_file
from wire.batch_header import CODEC_MASK, MAX_SEQUENCE
from wire.record_batch import Record, RecordBatch

T = TypeVar("T")

_CODEC_NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")


class Control(NamedTuple):
    """The contents of a control record: Kafka's name of its type, and its fields."""

    kind: str
    type_number: int
    fields: Mapping[str, Any] | None


class Problems:
    """Reports problems of files on stderr. Any problem makes the command fail.

    `hint` reports what may be correct (gaps of a compacted log), as Kafka's tool does.
    """

    def __init__(self) -> None:
        self.count = 0

    def add(self, path: str, text: str, *, position: int | None = None) -> None:
        """Report damage in a file, at a position in bytes if there is one."""
        self.count += 1
        where = path if position is None else f"{path}: at byte {position}"
        note(f"kbroker dump-log: {where}: {text}")

    def hint(self, path: str, text: str) -> None:
        """Report something unusual that is not damage."""
        note(f"kbroker dump-log: {path}: {text}")

    def parsed(self, disk: ReadableDisk, path: str, parse: Callable[[str], T]) -> T | None:
        """The parsed text of a file; None, after a report, if it cannot be parsed. Errors: OSError."""
        try:
            return parse(read_file(disk, path).decode())
        except ValueError as error:
            self.add(path, f"cannot be read: {error}")
            return None


def _out() -> TextIO:
    """Standard output for records: their bytes must not stop the dump."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    return sys.stdout


def record_sequence(batch: RecordBatch, record: Record) -> int:
    """A record's sequence number; -1 if it has none."""
    if batch.base_sequence < 0:
        return -1
    return (batch.base_sequence + record.offset - batch.base_offset) & MAX_SEQUENCE


def codec_name(batch: RecordBatch) -> str:
    """Kafka's name of a batch's codec, also for an unknown codec."""
    number = batch.attributes & CODEC_MASK
    return _CODEC_NAMES[number] if number < len(_CODEC_NAMES) else f"unknown({number})"


def _timestamp_type(batch: RecordBatch) -> str:
    return "LogAppendTime" if batch.is_log_append_time else "CreateTime"


def header_names(record: Record) -> list[str]:
    """The names of a record's headers, with replacement characters for invalid UTF-8."""
    return [text(name.encode("utf-8", "surrogateescape")) for name, _ in record.headers]


class OptionalLong(NamedTuple):
    """A number that may be absent, in Java's notation."""

    value: int | None

    def __str__(self) -> str:
        return "OptionalLong.empty" if self.value is None else f"OptionalLong[{self.value}]"


def _batch_fields(batch: RecordBatch, position: int, *, is_valid: bool) -> dict[str, Any]:
    return {
        "baseOffset": batch.base_offset,
        "lastOffset": batch.last_offset,
        "count": batch.record_count,
        "baseSequence": batch.base_sequence,
        "lastSequence": batch.last_sequence,
        "producerId": batch.producer_id,
        "producerEpoch": batch.producer_epoch,
        "partitionLeaderEpoch": batch.partition_leader_epoch,
        "isTransactional": batch.is_transactional,
        "isControl": batch.is_control,
        "deleteHorizonMs": OptionalLong(batch.base_timestamp if batch.has_delete_horizon else None),
        "position": position,
        "timestampType": _timestamp_type(batch),
        "maxTimestamp": batch.max_timestamp,
        "size": batch.size,
        "magic": batch.magic,
        "compression": codec_name(batch),
        "crc": batch.crc,
        "isValid": is_valid,
    }


class KafkaLines:
    """The lines of Kafka's tool."""

    def __init__(self, *, skip_record_metadata: bool = False) -> None:
        self._write = visible_writer(_out(), visible_lines)
        self._skips_metadata = skip_record_metadata

    def line(self, text: str, kind: str, /, **fields: Any) -> None:
        """Print a line as Kafka's tool does. JsonLines prints an object of this kind with these fields instead."""
        del kind, fields
        self._write(f"{text}\n")

    def batch(self, batch: RecordBatch, position: int, *, is_valid: bool) -> None:
        names = {"maxTimestamp": _timestamp_type(batch), "compression": "compresscodec", "isValid": "isvalid"}
        fields = _batch_fields(batch, position, is_valid=is_valid)
        del fields["timestampType"]
        self.row("batch", {names.get(name, name): value for name, value in fields.items()})

    def record(self, batch: RecordBatch, record: Record, payload: Payload | None, control: Control | None) -> None:
        parts: list[str] = []
        if not self._skips_metadata:
            parts.append(
                f"| offset: {record.offset} {_timestamp_type(batch)}: {record.timestamp} "
                f"keySize: {_size(record.key)} valueSize: {_size(record.value)} "
                f"sequence: {record_sequence(batch, record)} headerKeys: [{','.join(header_names(record))}]"
            )
            if control is not None:
                parts.append(_control_text(control))
        if payload is not None:
            lead = "| " if self._skips_metadata else " "
            if payload.key is not None:
                parts.append(f"{lead}key: {_shown(payload.key)}")
                lead = " "
            if payload.value is not None:
                parts.append(f"{lead}payload: {_shown(payload.value)}")
        self._write(f"{''.join(parts)}\n")

    def row(self, kind: str, fields: Mapping[str, Any]) -> None:
        del kind
        shown = {name: str(value).lower() if isinstance(value, bool) else value for name, value in fields.items()}
        self._write(" ".join(f"{name}: {value}" for name, value in shown.items()) + "\n")


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _shown(value: Shown) -> str:
    return value if isinstance(value, str) else dump_json(value)


def _control_text(control: Control) -> str:
    if control.kind in {"ABORT", "COMMIT"}:
        epoch = "" if control.fields is None else f" coordinatorEpoch: {control.fields['coordinatorEpoch']}"
        return f" endTxnMarker: {control.kind}{epoch}"
    if control.fields is None:
        return f" controlType: {control.kind}({control.type_number})"
    colon = ":" if control.kind == "LeaderChange" else ""
    return f" {control.kind}{colon} {dump_json(control.fields)}"


class JsonLines:
    """One JSON object per line, with `kind` first. Bytes that are not UTF-8 are {"base64": ...}."""

    def __init__(self) -> None:
        self._write = visible_writer(_out(), visible_json)

    def line(self, text: str, kind: str, /, **fields: Any) -> None:
        del text
        self._put(kind, **fields)

    def _put(self, kind: str, /, **fields: Any) -> None:
        self._write(dump_json({"kind": kind, **fields}) + "\n")

    def batch(self, batch: RecordBatch, position: int, *, is_valid: bool) -> None:
        self.row("batch", _batch_fields(batch, position, is_valid=is_valid))

    def record(self, batch: RecordBatch, record: Record, payload: Payload | None, control: Control | None) -> None:
        fields: dict[str, Any] = {
            "offset": record.offset,
            "timestamp": record.timestamp,
            "keySize": _size(record.key),
            "valueSize": _size(record.value),
            "sequence": record_sequence(batch, record),
            "headers": [
                {"key": name, "value": lossless(value)}
                for name, (_, value) in zip(header_names(record), record.headers, strict=True)
            ],
        }
        if control is not None:
            fields["control"] = {"type": control.kind, **(control.fields or {})}
        if payload is not None:
            fields["key"] = _as_sent(payload.key, record.key)
            fields["value"] = _as_sent(payload.value, record.value)
        self._put("record", **fields)

    def row(self, kind: str, fields: Mapping[str, Any]) -> None:
        shown = {name: value.value if isinstance(value, OptionalLong) else value for name, value in fields.items()}
        self._put(kind, **shown)


def _as_sent(shown: Shown | None, data: bytes | None) -> Shown | None:
    # A replacement character means that the text has lost bytes.
    return lossless(data) if isinstance(shown, str) and "\ufffd" in shown else shown


Printer: TypeAlias = KafkaLines | JsonLines

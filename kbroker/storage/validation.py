"""Validate a produced batch and convert it to its stored form.

The rules, their order and their error codes are Kafka's: exactly one whole batch of format 2, base offset 0, its size,
its CRC, its header, then every record in it, then the topic's settings (keys, timestamps, codec). For an unknown codec
or a block that does not decode, Kafka answers UNKNOWN_SERVER_ERROR, which makes Java producers send duplicates. kbroker
answers UNSUPPORTED_COMPRESSION_TYPE or INVALID_RECORD.

**Inside a batch kbroker checks everything that could stop a consumer, in every record.** Each length, key, value and
header must fit exactly into its record, and the records into the batch; offset deltas must be 0, 1, 2, ...; the number
of records must match the header; a compressed block must decode to its end with nothing after it. This is stricter than
Kafka, which accepts an uncompressed batch with wrong offset deltas, and skips over the keys and values of a compressed
batch without comparing them with the record's length (its own consumer then fails permanently). max_timestamp is set to
the actual maximum of the records.

Every record is checked, because the walk is cheap (wire.record_walk, wire.record_columns; one core, both cores of the
machine busy; CPU time from tests/bench/bench_validation.py):

    1 record                          1.2 us for the walk, 5 us for all checks
    16 KiB, records of 1 KiB / 100 B  9 us / 75 us
    900 KiB, 900 records of 1 KiB     0.07 ms of one size, 0.33 ms of various sizes (0.53 ms record by record)
    900 KiB, 8,000 records of 100 B   0.5 ms of one size, 3.1 ms of various sizes (4.2-5.2 ms record by record)
      with keys of various sizes      5.3 ms; with a header each 7.8 ms

The walk is Python and holds the interpreter's lock, which a thread releases only every 5 ms. So a thread helps the
event loop only if the work takes longer or is done by the codecs, which release the lock. For other work both would
wait for the lock: 900 KiB batches of 8,000 records are validated at 265 MB/s with the walk in a thread, at 640 MB/s
without. `is_cheap` sends these batches to a thread: those with more than CHEAP_RECORDS records; compressed ones that
could decode to more than CHEAP_DECODED_BYTES or have more than CHEAP_COMPRESSED_RECORDS; and those that need
recompression, unless they are small. A thread hop costs about 0.12 ms.

A compressed batch is decoded and walked one piece at a time. `unpacking_bytes` gives the necessary memory beforehand,
so that the caller can keep within a budget. A batch that decodes to more than `kbroker.max.decompressed.batch.bytes`
or holds a record of more than 64 MiB is INVALID_RECORD.

Source: LogValidator, UnifiedLog.analyzeAndValidateRecords and ProduceRequest.validateRecords of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from kbroker.storage.log_config import LogConfig
from wire.batch_header import CODEC_MASK, HEADER_SIZE, MAGIC
from wire.compression import (
    MAX_WORKING_BYTES,
    Codec,
    compress,
    decompress,
    decompress_pieces,
    most_decoded,
    working_bytes,
)
from wire.errors import ErrorCode, KafkaError, Malformed
from wire.record_batch import (
    MAX_DECOMPRESSED_BYTES,
    NO_TIMESTAMP,
    LegacyMagic,
    RecordBatch,
    set_max_timestamp,
    with_payload,
)
from wire.record_walk import RecordWalk, shallow_records, walk_pieces

MAX_RECORD_ERRORS: Final = 100
MAX_RECORDS_SEARCHED: Final = 1 << 16  # checked one by one to find the invalid ones
ZSTD_SINCE_VERSION: Final = 7
CHEAP_RECORDS: Final = 8192
CHEAP_PLAIN_BYTES: Final = 28 << 10  # cannot hold more records than CHEAP_RECORDS: the smallest takes 7 bytes
CHEAP_COMPRESSED_RECORDS: Final = 1024
CHEAP_DECODED_BYTES: Final = 1 << 20
_LEAST_LENGTH: Final = 14  # of a batch in any format
_MAGIC_END: Final = 17
_LOW_ATTRIBUTES: Final = 22  # position of the attributes byte with the codec
_MIN_INT64: Final = -1 << 63
_MAX_INT64: Final = (1 << 63) - 1
# Looked up once: comparing with a member of an enumeration takes longer than with an int.
_NONE: Final = Codec.NONE
_ZSTD: Final = int(Codec.ZSTD)


class RecordError(NamedTuple):
    """An invalid record: its index in the batch and a message for the producer (Produce v8+)."""

    batch_index: int
    message: str


class RecordsRefused(KafkaError):
    """The batch is well-formed, but the topic does not accept some of its records. The message is for the producer.

    `record_errors` holds at most the first MAX_RECORD_ERRORS errors among the first MAX_RECORDS_SEARCHED records, and
    may be empty (Kafka: all errors). A producer fails the whole batch in any case.
    """

    def __init__(self, code: ErrorCode, message: str, record_errors: list[RecordError]) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


class NotOneBatch(KafkaError):
    """The request does not hold exactly one whole batch of format 2; refused before the log is consulted."""


class ProducedBatch:
    """The one batch of a partition, ready to get its offsets and to be appended.

    batch            its base_offset is 0, partition_leader_epoch is as the producer sent it
    data             the bytes of `batch`: those of the request, unless they had to be changed and were read-only
    log_append_time  ms for the reply, -1 if the topic keeps the producer's timestamps
    """

    __slots__ = ("batch", "data", "log_append_time")

    def __init__(self, batch: RecordBatch, log_append_time: int) -> None:
        self.batch = batch
        self.data = batch.data
        self.log_append_time = log_append_time


def validate_produced(
    records: memoryview | bytes | bytearray | None,
    *,
    api_version: int,
    config: LogConfig,
    timestamp_ms: int,
    partition: str = "",
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> ProducedBatch:
    """Check one partition's `records` of a Produce request of `api_version` and apply the topic's settings to them.

    timestamp_ms is wall time; `partition` ("topic-0") is for messages. Raises KafkaError, or RecordsRefused if single
    records are invalid. Writes into `records` if the batch has to be changed and they are writable. CPU only:
    `is_cheap` tells whether it may run in the event loop.
    """
    batch = _only_batch(records, api_version)
    where = f" in topic partition {partition}" if partition else ""
    _check_header(batch, config, where)
    source = batch.codec
    target = _target_codec(config, source)
    walk = RecordWalk(batch.record_count)
    decoded = None
    try:
        if source is _NONE:
            decoded = bytes(batch.payload)
            walk.feed(decoded)
        elif target is source:
            walk_pieces(walk, decompress_pieces(source, batch.payload, max_bytes=max_decompressed_bytes))
        else:
            decoded = decompress(source, batch.payload, max_bytes=min(max_decompressed_bytes, MAX_WORKING_BYTES))
            walk.feed(decoded)
    except Malformed as error:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"{error}{where}") from None
    latest = _check_records(batch, walk, config, timestamp_ms, where, max_bytes=max_decompressed_bytes)
    if target is not source:
        assert decoded is not None
        batch = _recompressed(batch, decoded, target, config, where)
    if batch.size > config.segment_bytes:
        raise KafkaError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"a batch of {batch.size} bytes is larger than a segment of {config.segment_bytes}{where}",
        )
    return _stamped(batch, config, latest, timestamp_ms)


def _only_batch(records: memoryview | bytes | bytearray | None, api_version: int) -> RecordBatch:
    """The one batch in `records`; makes the checks that Kafka makes while it parses the request."""
    if records is None:
        raise NotOneBatch(ErrorCode.INVALID_RECORD, "the records are null")
    batch = _next_batch(records, 0)
    if batch is None:
        raise NotOneBatch(ErrorCode.INVALID_RECORD, "there is no complete record batch")
    if batch.attributes & CODEC_MASK == _ZSTD and api_version < ZSTD_SINCE_VERSION:
        raise NotOneBatch(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs Produce 7, this is {api_version}")
    # As in Kafka, an incomplete second batch is dropped; a complete one is an error.
    if batch.size != len(records) and _next_batch(records, batch.size) is not None:
        raise NotOneBatch(ErrorCode.INVALID_RECORD, "there is more than one record batch")
    return batch


def _next_batch(records: memoryview | bytes | bytearray, position: int) -> RecordBatch | None:
    """The batch at `position`, None if it is incomplete. Raises KafkaError for bytes that cannot be a batch."""
    try:
        batch = RecordBatch(records, position)
    except Malformed as error:
        # Java's reader checks the length once it is there, then the format, then the rest.
        left = len(records) - position
        length = int.from_bytes(records[position + 8 : position + 12], "big", signed=True)
        if left < 12 or (length >= _LEAST_LENGTH and left < _MAGIC_END):
            return None
        if length >= _LEAST_LENGTH and left < length + 12 and records[position + _MAGIC_END - 1] <= MAGIC:
            return None
        code = ErrorCode.INVALID_RECORD if isinstance(error, LegacyMagic) else ErrorCode.CORRUPT_MESSAGE
        raise NotOneBatch(code, str(error)) from None
    return batch if batch.is_whole else None


def _check_header(batch: RecordBatch, config: LogConfig, where: str) -> None:
    if batch.base_offset != 0:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"the base offset should be 0, but it is {batch.base_offset}{where}")
    if batch.size > config.max_message_bytes:
        raise _too_large(batch.size, config, where)
    if not batch.crc_is_valid():
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"the batch's CRC is wrong (stored {batch.crc}){where}")
    if batch.attributes & CODEC_MASK > _ZSTD:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown compression codec {batch.attributes & CODEC_MASK}{where}"
        )
    if not 0 < batch.record_count == batch.last_offset_delta + 1:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"{batch.record_count} records with a last offset delta of {batch.last_offset_delta}{where}",
        )
    if batch.is_control:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"clients are not allowed to write control records{where}")
    if batch.has_producer_id and batch.base_sequence < 0:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"sequence number {batch.base_sequence} in a batch with producer id {batch.producer_id}{where}",
        )


def _too_large(size: int, config: LogConfig, where: str) -> KafkaError:
    return KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"a batch of {size} bytes is larger than max.message.bytes, {config.max_message_bytes}{where}",
    )


def _check_records(
    batch: RecordBatch, walk: RecordWalk, config: LogConfig, timestamp_ms: int, where: str, *, max_bytes: int
) -> int:
    """The largest timestamp of the records (ms, at least -1). Raises RecordsRefused if the topic does not accept some
    of them.

    Usually the bounds from the walk decide; the records are checked one by one only if the bounds are out of range.
    """
    low, high = batch.base_timestamp + walk.min_delta, batch.base_timestamp + walk.max_delta
    if low < _MIN_INT64 or high > _MAX_INT64:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"a timestamp is beyond 64 bits{where}")
    earliest = timestamp_ms - config.message_timestamp_before_max_ms
    newest = timestamp_ms + config.message_timestamp_after_max_ms
    keys_missing = config.is_compacting and walk.has_null_key
    if batch.is_log_append_time:
        # Java takes max_timestamp as the timestamp of each record of such a batch.
        times_wrong = (
            config.is_log_append_time
            or batch.max_timestamp == NO_TIMESTAMP
            or not earliest <= batch.max_timestamp <= newest
        )
    else:
        times_wrong = not config.is_log_append_time and not earliest <= low <= high <= newest
    if keys_missing or times_wrong:
        # Records without a timestamp are valid, and may be the only ones below the range.
        is_certain = keys_missing or batch.is_log_append_time or high > newest or low != NO_TIMESTAMP
        errors = _record_errors(
            batch, config, earliest, newest, where, max_bytes=max_bytes, searches_all=not is_certain
        )
        found = list(islice(errors, MAX_RECORD_ERRORS))
        if found or is_certain:
            raise _refusal(found, times_wrong=times_wrong)
    return max(high, NO_TIMESTAMP)


def _record_errors(
    batch: RecordBatch,
    config: LogConfig,
    earliest: int,
    newest: int,
    where: str,
    *,
    max_bytes: int,
    searches_all: bool,
) -> Iterator[tuple[ErrorCode, RecordError]]:
    """The errors of single records, in order, with Kafka's messages."""
    pieces = decompress_pieces(batch.codec, batch.payload, max_bytes=max_bytes)
    count = batch.record_count if searches_all else min(batch.record_count, MAX_RECORDS_SEARCHED)
    for index, (delta, has_key) in enumerate(islice(shallow_records(pieces, batch.record_count), count)):
        timestamp = batch.max_timestamp if batch.is_log_append_time else batch.base_timestamp + delta
        if config.is_compacting and not has_key:
            message = f"Compacted topic cannot accept message without key{where}"
            yield ErrorCode.INVALID_RECORD, RecordError(index, message)
        elif batch.is_log_append_time and (config.is_log_append_time or timestamp == NO_TIMESTAMP):
            message = (
                f"Invalid timestamp type in message with offset {index}. "
                "Producer should not set timestamp type to LogAppendTime."
            )
            yield ErrorCode.INVALID_TIMESTAMP, RecordError(index, message)
        elif not config.is_log_append_time and timestamp != NO_TIMESTAMP and not earliest <= timestamp <= newest:
            message = (
                f"Timestamp {timestamp} of message with offset {index} is out of range. "
                f"The timestamp should be within [{earliest}, {newest}]"
            )
            yield ErrorCode.INVALID_TIMESTAMP, RecordError(index, message)


def _refusal(errors: list[tuple[ErrorCode, RecordError]], *, times_wrong: bool) -> RecordsRefused:
    """One error for the whole batch; `errors` may be empty if the invalid records come late in the batch."""
    found = [error for _, error in errors]
    codes = {code for code, _ in errors}
    if ErrorCode.INVALID_TIMESTAMP in codes or (times_wrong and not codes):
        message = "One or more records have been rejected due to invalid timestamp"
        return RecordsRefused(ErrorCode.INVALID_TIMESTAMP, message, found)
    shown = ", ".join(f"RecordError(batchIndex={e.batch_index}, message='{e.message}')" for e in found[:3])
    at_least = "at least " if not 0 < len(found) < MAX_RECORD_ERRORS else ""
    return RecordsRefused(
        ErrorCode.INVALID_RECORD,
        f"One or more records have been rejected due to {at_least}{max(len(found), 1)} record errors in total, "
        f"and only showing the first three errors at most: [{shown}]",
        found,
    )


def _target_codec(config: LogConfig, source: Codec) -> Codec:
    """The codec that the topic's `compression.type` requires."""
    name = config.compression_type
    if name == "producer":
        return source
    return Codec.NONE if name == "uncompressed" else Codec[name.upper()]


def _recompressed(batch: RecordBatch, decoded: bytes, target: Codec, config: LogConfig, where: str) -> RecordBatch:
    """The batch with its records compressed with `target`; other fields stay the same."""
    levels = {
        Codec.GZIP: config.compression_gzip_level,
        Codec.LZ4: config.compression_lz4_level,
        Codec.ZSTD: config.compression_zstd_level,
    }
    payload = decoded if target is _NONE else compress(target, decoded, levels.get(target))
    data = with_payload(batch, payload, target)
    if len(data) > config.max_message_bytes:
        raise _too_large(len(data), config, where)
    return RecordBatch(data)


def _stamped(batch: RecordBatch, config: LogConfig, latest: int, timestamp_ms: int) -> ProducedBatch:
    """The batch with the topic's timestamp type and the actual max_timestamp; updates the CRC if they change."""
    append_time = config.is_log_append_time
    max_timestamp = timestamp_ms if append_time else latest
    if batch.max_timestamp != max_timestamp or batch.is_log_append_time != append_time:
        data = batch.data
        if data.readonly:
            data = memoryview(bytearray(data))
        set_max_timestamp(data, max_timestamp=max_timestamp, is_log_append_time=append_time)
        batch = RecordBatch(data)
    return ProducedBatch(batch, timestamp_ms if append_time else NO_TIMESTAMP)


def unpacking_bytes(records: memoryview | bytes | bytearray, config: LogConfig) -> int:
    """An estimate of the most memory that validate_produced needs besides the records if it is not cheap.

    Reads only headers.
    """
    batch = RecordBatch(records)
    source = batch.codec
    if source is _NONE:
        return batch.size
    target = _target_codec(config, source)
    if target is source:
        return working_bytes(source, batch.payload)
    # The decoded pieces, the joined records, and the recompressed batch.
    decoded = min(most_decoded(source, batch.payload, MAX_WORKING_BYTES), MAX_WORKING_BYTES)
    return 2 * decoded + config.max_message_bytes


def is_cheap(records: memoryview | bytes | bytearray | None, config: LogConfig) -> bool:
    """Whether validate_produced is so cheap (see above) that it should run in the event loop, not in a thread.

    Reads only the header and the block structure of a compressed batch. Refusing bytes that are no batch is cheap.
    """
    if records is None or len(records) < HEADER_SIZE:
        return True
    if (
        len(records) <= CHEAP_PLAIN_BYTES
        and not records[_LOW_ATTRIBUTES] & CODEC_MASK
        and config.compression_type == "producer"
    ):
        return True
    try:
        batch = RecordBatch(records)
    except Malformed:
        return True
    codec = batch.attributes & CODEC_MASK
    if not batch.is_whole or batch.size > config.max_message_bytes or codec > _ZSTD:
        return True
    source = Codec(codec)
    if _target_codec(config, source) is not source:
        return batch.record_count <= CHEAP_COMPRESSED_RECORDS and batch.size <= CHEAP_DECODED_BYTES >> 8
    if source is _NONE:
        return batch.record_count <= CHEAP_RECORDS
    return (
        batch.record_count <= CHEAP_COMPRESSED_RECORDS
        and most_decoded(source, batch.payload, CHEAP_DECODED_BYTES) <= CHEAP_DECODED_BYTES
    )

"""Rules for timestamps of produced records, and bounds of record errors, with the error codes of Kafka 4.3.1."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from kbroker.storage.validation import (
    MAX_RECORD_ERRORS,
    MAX_RECORDS_SEARCHED,
    RecordsRefused,
)
from tests.storage.validating import (
    APPEND_TIME,
    COMPACTED,
    CONFIG,
    HOUR,
    NOW,
    THREE,
    changed,
    check,
    of_payload,
    refusal,
)
from wire.batch_header import HEADER_SIZE
from wire.compression import Codec
from wire.errors import ErrorCode
from wire.record_batch import Record, RecordBatch, build_batch


@pytest.mark.parametrize(
    ("timestamp", "before_ms", "accepted"),
    [
        (NOW + HOUR, None, True),
        (NOW + HOUR + 1, None, False),
        (0, None, True),
        (-1, None, True),
        (-5, None, True),
        (NOW - 1000, 1000, True),
        (NOW - 1001, 1000, False),
        (-1, 1000, True),  # "no timestamp" is not out of range
        (-2, 1000, False),
    ],
)
def test_timestamps_outside_the_topics_bounds_are_refused(
    timestamp: int, before_ms: int | None, accepted: bool
) -> None:
    config = CONFIG if before_ms is None else replace(CONFIG, message_timestamp_before_max_ms=before_ms)
    built = build_batch([Record(timestamp=NOW), Record(timestamp=timestamp)])
    assert check(built, replace(config, message_timestamp_type="LogAppendTime")).batch.max_timestamp == NOW
    if accepted:
        assert check(built, config).batch.max_timestamp == max(NOW, timestamp)
        return
    error = refusal(built, config)
    assert error.code is ErrorCode.INVALID_TIMESTAMP
    assert isinstance(error, RecordsRefused)
    assert error.message == "One or more records have been rejected due to invalid timestamp"
    earliest, newest = NOW - config.message_timestamp_before_max_ms, NOW + HOUR
    words = (
        f"Timestamp {timestamp} of message with offset 1 is out of range. "
        f"The timestamp should be within [{earliest}, {newest}]"
    )
    assert error.record_errors == [(1, words)]


def test_a_timestamp_error_takes_precedence_over_a_missing_key() -> None:
    records = [Record(timestamp=NOW), Record(timestamp=NOW + 2 * HOUR, key=b"k"), Record(timestamp=NOW + 2 * HOUR)]
    error = refusal(build_batch(records), COMPACTED)
    assert error.code is ErrorCode.INVALID_TIMESTAMP
    assert isinstance(error, RecordsRefused)
    assert [wrong.batch_index for wrong in error.record_errors] == [0, 1, 2]
    assert "without key" in error.record_errors[2].message  # one error for each record: the missing key comes first


def test_timestamps_beyond_64_bits_are_refused() -> None:
    built = build_batch([Record(timestamp=1)], base_timestamp=1)
    overflowing = changed(built, 27, struct.pack(">q", (1 << 63) - 1))
    grown = of_payload(bytes.fromhex("0e 00 02 00 01 02 61 00"))
    assert refusal(changed(grown, 27, struct.pack(">q", (1 << 63) - 1))).code is ErrorCode.INVALID_RECORD
    assert refusal(overflowing).code is ErrorCode.INVALID_TIMESTAMP


def test_record_errors_are_bounded() -> None:
    error = refusal(build_batch([Record(timestamp=NOW)] * (MAX_RECORD_ERRORS + 500)), COMPACTED)
    assert isinstance(error, RecordsRefused)
    assert len(error.record_errors) == MAX_RECORD_ERRORS
    assert f"due to at least {MAX_RECORD_ERRORS} record errors" in error.message


@pytest.mark.long
@pytest.mark.parametrize("codec", list(Codec))
def test_a_refusal_searches_a_bounded_number_of_records(codec: Codec) -> None:
    good, late, keyless = (
        Record(timestamp=NOW, key=b"k"), Record(timestamp=NOW + 2 * HOUR, key=b"k"), Record(timestamp=NOW)
    )  # fmt: skip
    for wrong, config, code in ((late, CONFIG, "INVALID_TIMESTAMP"), (keyless, COMPACTED, "INVALID_RECORD")):
        for before, expected in ((MAX_RECORDS_SEARCHED - 1, [MAX_RECORDS_SEARCHED - 1]), (MAX_RECORDS_SEARCHED, [])):
            error = refusal(build_batch([good] * before + [wrong], codec=codec), config)
            assert isinstance(error, RecordsRefused)
            assert error.code is ErrorCode[code]
            assert [each.batch_index for each in error.record_errors] == expected


def test_records_without_a_timestamp_do_not_hide_invalid_ones() -> None:
    config = replace(CONFIG, message_timestamp_before_max_ms=HOUR)
    records = [Record(timestamp=NOW), *[Record(timestamp=-1)] * MAX_RECORDS_SEARCHED]
    assert check(build_batch(records), config).batch.max_timestamp == NOW
    error = refusal(build_batch([*records, Record(timestamp=5)]), config)
    assert isinstance(error, RecordsRefused)
    assert [each.batch_index for each in error.record_errors] == [len(records)]


@pytest.mark.parametrize("codec", list(Codec))
def test_a_log_append_time_topic_stamps_the_batch(codec: Codec) -> None:
    built = build_batch(THREE, codec=codec)
    taken = check(built, APPEND_TIME)
    assert (taken.log_append_time, taken.batch.max_timestamp) == (NOW, NOW)
    batch = RecordBatch(taken.data)
    assert batch.is_log_append_time
    assert batch.crc_is_valid()
    assert (batch.base_timestamp, batch.max_timestamp) == (NOW, NOW)
    assert batch.crc == taken.batch.crc
    assert [record.timestamp for record in batch.records()] == [NOW] * 3
    assert bytes(batch.payload) == built[HEADER_SIZE:]


def test_log_append_time_topics_refuse_log_append_time_from_producers() -> None:
    error = refusal(build_batch(THREE, log_append_time=NOW), APPEND_TIME)
    assert error.code is ErrorCode.INVALID_TIMESTAMP
    assert isinstance(error, RecordsRefused)
    assert [wrong.batch_index for wrong in error.record_errors] == [0, 1, 2]


def test_a_create_time_topic_clears_the_log_append_time_bit() -> None:
    taken = check(build_batch(THREE, log_append_time=NOW + 2))
    assert bytes(taken.data) == build_batch(THREE)
    assert taken.log_append_time == -1
    assert refusal(build_batch(THREE, log_append_time=-1)).code is ErrorCode.INVALID_TIMESTAMP
    assert refusal(build_batch(THREE, log_append_time=NOW + 2 * HOUR)).code is ErrorCode.INVALID_TIMESTAMP


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("claimed", [NOW - 1, NOW + 1, NOW + 10 * HOUR, -1])
def test_a_wrong_max_timestamp_is_corrected(codec: Codec, claimed: int) -> None:
    taken = check(build_batch(THREE, codec=codec, max_timestamp=claimed))
    assert bytes(taken.data) == build_batch(THREE, codec=codec)
    assert taken.batch.max_timestamp == NOW + 2


def test_timestamps_may_be_in_any_order() -> None:
    records = [Record(timestamp=NOW - 5), Record(timestamp=NOW + 9), Record(timestamp=NOW)]
    assert check(build_batch(records, base_timestamp=NOW - 100)).batch.max_timestamp == NOW + 9
    assert check(build_batch(records, base_timestamp=NOW + 100)).batch.max_timestamp == NOW + 9
    assert check(build_batch([Record()])).batch.max_timestamp == -1

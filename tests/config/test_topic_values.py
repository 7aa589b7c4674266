"""The log config of a topic."""

from __future__ import annotations

import dataclasses

import pytest

from kbroker.config import Settings
from kbroker.storage.log_config import LogConfig


def test_the_storages_defaults_are_kafkas() -> None:
    assert Settings.load().log_config({}, LogConfig) == LogConfig()


def test_a_topics_own_setting_overrides_the_brokers() -> None:
    settings = Settings.load(b"message.max.bytes=500")
    assert settings.log_config({}, LogConfig).max_message_bytes == 500
    assert settings.log_config({"max.message.bytes": "600"}, LogConfig).max_message_bytes == 600


@pytest.mark.parametrize(
    ("lines", "field", "expected"),
    [
        ("log.retention.hours=2", "retention_ms", 7_200_000),
        ("log.retention.hours=2\nlog.retention.minutes=3", "retention_ms", 180_000),
        ("log.retention.hours=2\nlog.retention.minutes=3\nlog.retention.ms=4", "retention_ms", 4),
        ("log.retention.hours=-1", "retention_ms", -1),
        ("log.retention.ms=-7", "retention_ms", -1),
        ("log.roll.hours=2", "segment_ms", 7_200_000),
        ("log.roll.hours=2\nlog.roll.ms=5", "segment_ms", 5),
        ("log.roll.jitter.hours=1", "segment_jitter_ms", 3_600_000),
        ("log.flush.scheduler.interval.ms=9", "flush_ms", 9),
        ("log.flush.scheduler.interval.ms=9\nlog.flush.interval.ms=8", "flush_ms", 8),
        ("producer.id.expiration.ms=7", "producer_id_expiration_ms", 7),
        ("log.segment.bytes=107370", "segment_bytes", 107370),
    ],
)
def test_a_brokers_setting_reaches_its_topics_in_kafkas_order(lines: str, field: str, expected: int) -> None:
    assert getattr(Settings.load(lines.encode()).log_config({}, LogConfig), field) == expected


def test_dynamic_settings_of_the_broker_reach_its_topics() -> None:
    settings = Settings.load(b"log.retention.hours=2")
    assert settings.log_config({}, LogConfig).retention_ms == 7_200_000
    assert settings.with_dynamic({"log.retention.ms": "5"}, {}).log_config({}, LogConfig).retention_ms == 5
    assert settings.log_config({}, LogConfig).retention_ms == 7_200_000


def test_an_invalid_stored_setting_counts_as_not_set() -> None:
    stored = {"retention.ms": "x", "cleanup.policy": "shred", "nobodys": "1", "segment.bytes": "2000000"}
    assert Settings.load().log_config(stored, LogConfig) == LogConfig(segment_bytes=2_000_000)


def test_the_settings_provide_every_field_of_the_log_config() -> None:
    given: dict[str, object] = {}
    Settings.load().log_config({}, lambda **fields: given.update(fields))
    assert set(given) == {field.name for field in dataclasses.fields(LogConfig)}

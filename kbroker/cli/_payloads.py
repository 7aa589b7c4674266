"""Decodes keys and values of records: one decoder for each kind of log that Kafka's dump tool supports.

A decoder returns key and value as text or as a message's fields; None is not printed. It raises Malformed for a record
that it cannot read; the dump then prints the error instead of the value and continues.

Source: DumpLogSegments and the decoders in org.apache.kafka.tools.api of Apache Kafka 4.3.1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import ModuleType
from typing import Any, Final, NamedTuple, TypeAlias

from kbroker.cli._message_json import message_to_json
from kbroker.cli._tier_payloads import event_text
from kbroker.config.catalogue import is_secret
from kbroker.config.rules import BROKER_RESOURCE
from wire.errors import Malformed
from wire.record_batch import Record
from wire.stored import consumer_protocol, groups, metadata, transactions
from wire.stored.frame import decode_key, decode_record, decode_value, record_types

Decode: TypeAlias = Callable[[bytes], str]
TOMBSTONE: Final = "<DELETE>"
REDACTED: Final = "(redacted)"


Shown: TypeAlias = str | dict[str, Any]


class Payload(NamedTuple):
    """A record's key and value, as text or as the fields of a message; None is not printed."""

    key: Shown | None
    value: Shown | None


Decoder: TypeAlias = Callable[[Record], Payload]


_ENCODED_SURROGATE: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")


def text(data: bytes) -> str:
    """UTF-8, with a replacement character for each malformed sequence, as Java counts them: a surrogate is one."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return _ENCODED_SURROGATE.sub("\ufffd".encode(), data).decode("utf-8", "replace")


def _integer(size: int) -> Decode:
    def decode(data: bytes) -> str:
        if len(data) != size:
            raise Malformed(f"{len(data)} bytes, where an integer of {size} is due")
        return str(int.from_bytes(data, "big", signed=True))

    return decode


# Kafka's decoders. Its DefaultDecoder prints the identity of a Java object; this one prints the bytes.
CLASSES: Final[Mapping[str, Decode]] = {
    "org.apache.kafka.tools.api.StringDecoder": text,
    "org.apache.kafka.tools.api.IntegerDecoder": _integer(4),
    "org.apache.kafka.tools.api.LongDecoder": _integer(8),
    "org.apache.kafka.tools.api.DefaultDecoder": bytes.hex,
}


def plain(key: Decode = text, value: Decode = text) -> Decoder:
    """The decoder of user topics."""

    def decode(record: Record) -> Payload:
        return Payload(
            None if record.key is None else key(record.key), None if record.value is None else value(record.value)
        )

    return decode


def kafka_name(cls: type) -> str:
    """Kafka's constant for a metadata record: `PartitionChangeRecord` -> `PARTITION_CHANGE_RECORD`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).upper()


def _coordinator(module: ModuleType, render: Callable[[Any, int], dict[str, Any]] = message_to_json) -> Decoder:
    keys, values = record_types(module, "Key"), record_types(module, "Value")

    def decode(record: Record) -> Payload:
        if record.key is None:
            raise Malformed("a record without a key")
        key = decode_key(record.key, keys)
        number = int.from_bytes(record.key[:2], "big", signed=True)
        if key is None:
            return Payload(f"Unknown record type {number} at offset {record.offset}, skipping.", None)
        shown: Shown = {"type": str(number), "data": message_to_json(key, 0)}
        if record.value is None:
            return Payload(shown, TOMBSTONE)
        value: Any = decode_value(values[number], record.value)
        version = int.from_bytes(record.value[:2], "big")
        return Payload(shown, {"version": str(version), "data": render(value, version)})

    return decode


def _group_value(value: Any, version: int) -> dict[str, Any]:
    shown = message_to_json(value, version)
    if isinstance(value, groups.GroupMetadataValue) and value.protocol_type == "consumer":
        for member, out in zip(value.members, shown["members"], strict=True):
            for name, cls in (
                ("subscription", consumer_protocol.ConsumerProtocolSubscription),
                ("assignment", consumer_protocol.ConsumerProtocolAssignment),
            ):
                data = getattr(member, name)
                # Only the consumer protocol's bytes can be decoded; others stay as they are.
                with suppress(Malformed):
                    out[name] = message_to_json(decode_value(cls, data), int.from_bytes(data[:2], "big"))
    return shown


def cluster_metadata() -> Decoder:
    """The decoder of `__cluster_metadata` and its snapshots."""
    types = record_types(metadata)

    def decode(record: Record) -> Payload:
        if record.value is None:
            raise Malformed("a record without a value")
        message, version = decode_record(record.value, types)
        fields = _without_secrets(message, message_to_json(message, version))
        return Payload(None, {"type": kafka_name(type(message)), "version": version, "data": fields})

    return decode


def _without_secrets(message: object, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a metadata record for people: credentials and values of secret settings are replaced.

    Source  RecordRedactor of Apache Kafka 4.3.1, which its metadata shell and its log use. Kafka's dump tool shows all.
    """
    if isinstance(message, metadata.ConfigRecord):
        hides = message.value is not None and message.resource_type == BROKER_RESOURCE and is_secret(message.name)
        return {**fields, "value": REDACTED} if hides else fields
    if isinstance(message, metadata.UserScramCredentialRecord):
        return {**fields, **dict.fromkeys(("salt", "storedKey", "serverKey"), REDACTED)}
    return fields


def remote_log_metadata() -> Decoder:
    """The decoder of `__remote_log_metadata`."""
    return lambda record: Payload(None, event_text(record))


def consumer_offsets() -> Decoder:
    """The decoder of `__consumer_offsets`."""
    return _coordinator(groups, _group_value)


def transaction_state() -> Decoder:
    """The decoder of `__transaction_state`."""
    return _coordinator(transactions)

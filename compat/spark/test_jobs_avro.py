"""Avro values become columns by the writer's schema, with or without a registry's header; other values get a reason."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import pytest

from kbroker.spark.errors import InvalidOption
from kbroker.spark.jobs.avro_schema import parse_avro_schema, spark_schema
from kbroker.spark.jobs.decoding import Decoder, Decoding

SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "other", "type": "Kind"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}},
        {"name": "ref", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "raw", "type": {"type": "fixed", "name": "Four", "size": 4}},
        {"name": "place", "type": {"type": "record", "name": "Place", "fields": [{"name": "x", "type": "double"}]}},
    ],
}
ROW = {
    "id": 7,
    "note": None,
    "kind": "B",
    "other": "A",
    "tags": ["a", "ü"],
    "counts": {"k": 3},
    "day": date(2026, 1, 31),
    "at": datetime(2026, 1, 31, 12, tzinfo=UTC),
    "price": Decimal("12.50"),
    "ref": UUID(int=5),
    "raw": b"\x00\x01\x02\xff",
    "place": {"x": 0.5},
}


def encoded(row: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(SCHEMA), row)
    return out.getvalue()


def decoder(**more: Any) -> Decoder:
    parsed = parse_avro_schema(json.dumps(SCHEMA), name="the schema")
    return Decoder(Decoding("avro", spark_schema(parsed), avro_schema=parsed, **more))


def test_each_type_of_avro_is_a_column() -> None:
    made = decoder()
    columns, reasons = made.decode([encoded(ROW), encoded({**ROW, "note": "n"})])
    assert reasons == [None, None]
    found = {name: column.to_pylist() for name, column in zip(made.names, columns, strict=True)}
    assert found.pop("note") == [None, "n"]
    assert found.pop("ref") == [str(ROW["ref"])] * 2
    assert found.pop("counts") == [[("k", 3)]] * 2
    assert found == {name: [ROW[name]] * 2 for name in found}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"", "the value is not Avro of this schema: it ends after 0 bytes"),
        (encoded(ROW)[:-1], "the value is not Avro of this schema: "),
        (encoded(ROW) + b"xy", "the value is not Avro of this schema: 2 bytes remain after it"),
        (b"{}", "the value is not Avro of this schema: "),
    ],
)
def test_a_value_that_is_not_avro_is_reported(value: bytes, said: str) -> None:
    _, (reason,) = decoder().decode([value])
    assert reason is not None
    assert reason.startswith(said)


def test_a_confluent_header_is_stripped_and_its_id_checked() -> None:
    value = b"\x00\x00\x00\x00\x05" + encoded(ROW)
    assert decoder(has_confluent_header=True).decode([value]).reasons == [None]
    assert decoder(has_confluent_header=True, schema_id=5).decode([value]).reasons == [None]
    assert decoder(has_confluent_header=True, schema_id=6).decode([value]).reasons == [
        "the value was written with the schema 5, not with 6"
    ]
    for other in (encoded(ROW), b"\x00\x00"):
        assert decoder(has_confluent_header=True).decode([other]).reasons == [
            "the value does not begin with Confluent's header, a zero byte and a schema id"
        ]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("{", "is not JSON"),
        ('"string"', "is not the schema of a record"),
        ('{"type": "record", "name": "R", "fields": [{"name": "a", "type": "Nope"}]}', "is not an Avro schema"),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "a", "type": ["int", "string"]}]}',
            "field a of the Avro schema is a union of int, string",
        ),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "next", "type": ["null", "R"]}]}',
            "of the Avro schema contains itself",
        ),
        (
            json.dumps({**SCHEMA, "fields": [{"name": "t", "type": {"type": "int", "logicalType": "time-millis"}}]}),
            "field t of the Avro schema is a time-millis",
        ),
    ],
)
def test_a_schema_without_columns_is_refused(schema: str, said: str) -> None:
    with pytest.raises(InvalidOption, match="Remedy: ") as error:
        spark_schema(parse_avro_schema(schema, name="the schema"))
    assert said in str(error.value)

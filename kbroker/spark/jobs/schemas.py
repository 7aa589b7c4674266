"""Parses the schema for decoding values: Spark's DDL or JSON, or an Avro schema."""

from __future__ import annotations

from typing import Any

from pyspark.sql.types import StructType

from kbroker.spark.errors import InvalidOption
from kbroker.spark.jobs.avro_schema import parse_avro_schema, spark_schema
from kbroker.spark.jobs.decoding import FORMATS, Decoding
from kbroker.spark.schema import parse_schema


def decoding_of(format: str, schema: str | StructType, **more: Any) -> Decoding:
    """How values of a format become columns. `schema` is a StructType, DDL, Spark's JSON, or an Avro schema.

    `more` are the fields of Decoding. Errors: InvalidOption for an invalid schema.
    """
    if format not in FORMATS:
        raise InvalidOption(f"values of {format!r} cannot be decoded", remedy=f"use one of {', '.join(FORMATS)}")
    if format != "avro":
        return Decoding(format, parse_schema(schema).jsonValue(), **more)
    if not isinstance(schema, str):
        raise InvalidOption("Avro values need an Avro schema", remedy="give the text of the .avsc file")
    parsed = parse_avro_schema(schema, name="the schema")
    return Decoding(format, spark_schema(parsed), avro_schema=parsed, **more)

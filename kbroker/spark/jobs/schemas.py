"""Parses the schema for decoding values: Spark's DDL or JSON, or an Avro schema."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kbroker.spark.errors import InvalidOption
from kbroker.spark.jobs.avro_schema import parse_avro_schema, spark_schema
from kbroker.spark.jobs.decoding import FORMATS, Decoding
from kbroker.spark.jobs.field_types import Schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


def decoding_of(spark: SparkSession, format: str, schema: str | StructType, **more: Any) -> Decoding:
    """How values of a format become columns. `schema` is a StructType, DDL, Spark's JSON, or an Avro schema.

    `more` are the fields of Decoding. Errors: InvalidOption for an invalid schema.
    """
    if format not in FORMATS:
        raise InvalidOption(f"values of {format!r} cannot be decoded", remedy=f"use one of {', '.join(FORMATS)}")
    if format == "avro":
        if not isinstance(schema, str):
            raise InvalidOption("Avro values need an Avro schema", remedy="give the text of the .avsc file")
        parsed = parse_avro_schema(schema, name="the schema")
        return Decoding(format, spark_schema(parsed), avro_schema=parsed, **more)
    found = _parsed(spark, schema) if isinstance(schema, str) else schema.jsonValue()
    return Decoding(format, found, **more)


def _parsed(spark: SparkSession, text: str) -> Schema:
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415  (comes with PySpark)
    from pyspark.errors import PySparkException  # noqa: PLC0415
    from pyspark.sql.types import StructType  # noqa: PLC0415

    jvm: Any = spark._jvm
    remedy = "write it as `name TYPE, name TYPE NOT NULL, …`, or as the JSON of a StructType"
    try:
        if text.lstrip().startswith("{"):
            return dict(StructType.fromJson(json.loads(text)).jsonValue())
        found: Schema = json.loads(jvm.org.apache.spark.sql.types.StructType.fromDDL(text).json())
        return found
    except (Py4JJavaError, PySparkException) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise InvalidOption(f"the schema cannot be read: {lines[0]}", remedy=remedy) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidOption(f"the schema cannot be read: {error!r}", remedy=remedy) from None

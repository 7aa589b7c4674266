"""The columns of `format("kbroker")`, and their selection by the user's schema."""

from __future__ import annotations

import json
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kbroker.spark.errors import InvalidOption

if TYPE_CHECKING:
    from kbroker.spark.options import SourceOptions


def struct_of(**kinds: DataType) -> StructType:
    """A struct of these columns, in this order, all nullable."""
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


ALL_COLUMNS: Final = struct_of(
    key=BinaryType(),
    value=BinaryType(),
    topic=StringType(),
    partition=IntegerType(),
    offset=LongType(),
    timestamp=TimestampType(),
    timestampType=IntegerType(),
    headers=ArrayType(struct_of(key=StringType(), value=BinaryType())),
)
"""The Kafka source's columns; headers only with includeHeaders=true, or if a schema names them."""
NEVER_NULL: Final = frozenset({"topic", "partition", "offset", "timestamp", "timestampType"})


def default_schema(options: SourceOptions) -> StructType:
    """The columns if the user gives no schema."""
    return ALL_COLUMNS if options.include_headers else StructType(ALL_COLUMNS.fields[:-1])


def parse_schema(schema: StructType | str) -> StructType:
    """The schema that a user gives, as a StructType or as text: Spark's DDL or JSON. Errors: InvalidOption."""
    remedy = "write it as `name TYPE, name TYPE NOT NULL, …`, or as the JSON of a StructType"
    found: Any = schema
    try:
        if isinstance(schema, str):
            is_json = schema.lstrip().startswith("{")
            found = StructType.fromJson(json.loads(schema)) if is_json else StructType.fromDDL(schema)
    except PySparkException as error:
        said = str(error).strip().splitlines()[0]
        raise InvalidOption(f"the schema cannot be read: {said}", remedy=remedy) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidOption(f"the schema cannot be read: {error!r}", remedy=remedy) from None
    if not isinstance(found, StructType):
        raise InvalidOption(f"the schema {schema} is a type, not columns", remedy=remedy)
    return found


def columns_of(schema: StructType) -> tuple[str, ...]:
    """The names of the columns that a schema selects, in its order. Errors: InvalidOption."""
    known = {field.name: field.dataType for field in ALL_COLUMNS.fields}
    if not schema.fields:
        raise InvalidOption("the schema has no column", remedy=f"name some of {', '.join(known)}")
    for field in schema.fields:
        wanted = known.get(field.name)
        if wanted is None:
            near = get_close_matches(field.name, known, n=1, cutoff=0.6)
            raise InvalidOption(
                f"the schema has an unknown column {field.name}",
                remedy=f"did you mean {near[0]}?" if near else f"name some of {', '.join(known)}",
            )
        if field.dataType.simpleString() != wanted.simpleString():
            raise InvalidOption(
                f"the schema has the column {field.name} as {field.dataType.simpleString()}",
                remedy=f"use {wanted.simpleString()}, and cast it afterwards",
            )
        # Spark's generated code relies on NOT NULL and would fail at the first null.
        if not (field.nullable or field.name in NEVER_NULL) or field.dataType != wanted:
            raise InvalidOption(
                f"the schema says NOT NULL for the column {field.name}, which may be null",
                remedy="remove NOT NULL, and filter afterwards",
            )
    return tuple(field.name for field in schema.fields)

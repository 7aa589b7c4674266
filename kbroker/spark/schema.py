"""The columns of `format("kbroker")`, and the choice of them that a schema of the user's makes."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

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
    """These columns, in this order; each of them may be null."""
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
"""The Kafka source's columns; headers are there with includeHeaders=true, or where a schema names them."""
NEVER_NULL: Final = frozenset({"topic", "partition", "offset", "timestamp", "timestampType"})


def default_schema(options: SourceOptions) -> StructType:
    """The columns where nobody names any."""
    return ALL_COLUMNS if options.include_headers else StructType(ALL_COLUMNS.fields[:-1])


def columns_of(schema: StructType) -> tuple[str, ...]:
    """The names of the columns that a schema asks for, in its order. Errors: InvalidOption."""
    known = {field.name: field.dataType for field in ALL_COLUMNS.fields}
    if not schema.fields:
        raise InvalidOption("the schema has no column", remedy=f"name some of {', '.join(known)}")
    for field in schema.fields:
        wanted = known.get(field.name)
        if wanted is None:
            near = get_close_matches(field.name, known, n=1, cutoff=0.6)
            raise InvalidOption(
                f"the schema has a column {field.name}, which there is not",
                remedy=f"did you mean {near[0]}?" if near else f"name some of {', '.join(known)}",
            )
        if field.dataType.simpleString() != wanted.simpleString():
            raise InvalidOption(
                f"the schema has the column {field.name} as {field.dataType.simpleString()}",
                remedy=f"take {wanted.simpleString()}, and cast it afterwards",
            )
        # Spark believes it, and its generated code then fails at the first null.
        if not (field.nullable or field.name in NEVER_NULL) or field.dataType != wanted:
            raise InvalidOption(
                f"the schema says that nothing in the column {field.name} is null, which may be",
                remedy="leave NOT NULL out, and filter afterwards",
            )
    return tuple(field.name for field in schema.fields)

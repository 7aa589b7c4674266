"""The columns of `format("kbroker")`, and the choice of them that a schema of the user's makes."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kbroker.spark.errors import InvalidOption

ALL_COLUMNS: Final = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField(
            "headers", ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
        ),
    ]
)
"""The Kafka source's columns; headers are there with includeHeaders=true, or where a schema names them."""


def columns_of(schema: StructType) -> tuple[str, ...]:
    """The names of the columns that a schema asks for, in its order. Errors: InvalidOption."""
    known = {field.name: field.dataType for field in ALL_COLUMNS.fields}
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
    return tuple(field.name for field in schema.fields)

"""The rows of an export, with or without decoded values.

    key, value, topic, offset, timestamp, timestampType, headers       as stored
    date, partition                                                    the directories; date is the timestamp's, in UTC

With decoding, the fields of the value replace `value` and are the last columns, or one struct. Rows that could not be
decoded have their value and the reason instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from kbroker.spark.errors import InvalidOption
from kbroker.spark.jobs.decoding import Decoder, Decoding

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BASE: Final = ("key", "topic", "offset", "timestamp", "timestampType", "headers", "date", "partition")
RAW: Final = "_kbroker_value"
REASON: Final = "_kbroker_reason"
DAY_MICROS: Final = 86_400_000_000
# Does not use the session's time zone: days are in UTC.
DATE: Final = (
    f"CAST(date_add(DATE'1970-01-01', CAST((unix_micros(timestamp) - pmod(unix_micros(timestamp), {DAY_MICROS})) "
    f"DIV {DAY_MICROS} AS INT)) AS STRING)"
)


def _field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


_HEADER: Final = {"type": "struct", "fields": [_field("key", "string"), _field("value", "binary")]}
_COLUMNS: Final[tuple[tuple[str, Any], ...]] = (
    ("key", "binary"), ("value", "binary"), ("topic", "string"), ("offset", "long"), ("timestamp", "timestamp"),
    ("timestampType", "integer"), ("headers", {"type": "array", "elementType": _HEADER, "containsNull": True}),
)  # fmt: skip


def identity_schema(decoding: Decoding | None, into: str | None) -> dict[str, Any]:
    """The schema of the files, without the directories.

    Errors  InvalidOption if a field has the name of another column, or a type that cannot be decoded
    """
    columns = [_field(name, kind) for name, kind in _COLUMNS if decoding is None or name != "value"]
    if decoding is not None:
        Decoder(decoding)
        added = _added(decoding, into)
        taken = {name.lower() for name in (*BASE, RAW, REASON)}
        for each in added:
            if each["name"].lower() in taken:
                raise InvalidOption(
                    f"the schema's field {each['name']!r} has the name of another column",
                    remedy="put the fields into one struct with --into NAME, or rename it in the schema",
                )
            taken.add(each["name"].lower())
        columns += added
    return {"type": "struct", "fields": columns}


def _added(decoding: Decoding, into: str | None) -> list[dict[str, Any]]:
    if into is not None:
        return [_field(into, dict(decoding.schema))]
    return [dict(each) for each in decoding.schema["fields"]]


def rows_of(records: DataFrame, decoding: Decoding | None, into: str | None) -> DataFrame:
    """One row for each record. With decoding it also has the raw value, and the reason if it could not be decoded."""
    from pyspark.sql.functions import expr  # noqa: PLC0415
    from pyspark.sql.types import StructType  # noqa: PLC0415

    dated = records.withColumn("date", expr(DATE))
    if decoding is None:
        return dated.select(*BASE[:1], "value", *BASE[1:])
    given = dated.select(*BASE, dated["value"].alias(RAW))
    reason = _field(REASON, "string")
    # Rows that could not be decoded have none of the fields, so each of them is nullable.
    added = StructType.fromJson(
        {"type": "struct", "fields": [*({**each, "nullable": True} for each in _added(decoding, into)), reason]}
    )
    schema = StructType([*given.schema.fields, *added.fields])
    return given.mapInArrow(partial(decoded_batches, decoding=decoding, into=into), schema)


def good_rows(rows: DataFrame, decoding: Decoding | None) -> DataFrame:
    """The rows that could be decoded; all rows without decoding."""
    return rows if decoding is None else rows.where(f"{REASON} IS NULL").drop(RAW, REASON)


def bad_rows(rows: DataFrame) -> DataFrame:
    """The other rows, with their raw values and the reason."""
    from pyspark.sql.functions import col  # noqa: PLC0415

    chosen = rows.where(f"{REASON} IS NOT NULL")
    return chosen.select(*BASE, col(RAW).alias("value"), col(REASON).alias("reason"))


def decoded_batches(
    batches: Iterator[pa.RecordBatch], decoding: Decoding, into: str | None
) -> Iterator[pa.RecordBatch]:
    """Batches with the raw value, the fields of the value, and the reason."""
    from pyarrow import compute  # noqa: PLC0415  (only needed for decoding)

    decoder = Decoder(decoding)
    for batch in batches:
        values = batch.column(RAW)
        columns, texts = decoder.decode(values.to_pylist())
        reasons, names = pa.array(texts, pa.string()), decoder.names
        if into is not None:
            # A record whose fields are all null is a struct; tombstones and bad records are null.
            is_none = compute.or_(reasons.is_valid(), values.is_null())
            columns, names = [pa.StructArray.from_arrays(columns, names, mask=is_none)], [into]
        # Drop the raw value of decoded rows: it is not needed any more, and would be sent to the JVM.
        kept = compute.if_else(reasons.is_valid(), values, pa.scalar(None, values.type))
        given = [kept if name == RAW else batch.column(name) for name in batch.schema.names]
        yield pa.RecordBatch.from_arrays([*given, *columns, reasons], [*batch.schema.names, *names, REASON])

"""Converts an Avro schema to a Spark schema.

Records become structs, and a union with null becomes a nullable field; other unions are not supported. Logical types
become Spark's date, timestamp and decimal; a uuid remains a string. Times of day are not supported.

Source  the specification of Avro 1.12
"""

from __future__ import annotations

import json
from typing import Any, Final

from kbroker.spark.errors import InvalidOption

_PRIMITIVES: Final = {
    "boolean": "boolean",
    "int": "integer",
    "long": "long",
    "float": "float",
    "double": "double",
    "bytes": "binary",
    "string": "string",
}
_LOGICAL: Final = {
    ("int", "date"): "date",
    ("long", "timestamp-millis"): "timestamp",
    ("long", "timestamp-micros"): "timestamp",
    ("long", "local-timestamp-millis"): "timestamp_ntz",
    ("long", "local-timestamp-micros"): "timestamp_ntz",
}


def parse_avro_schema(text: str, *, name: str) -> Any:
    """The schema in a text. Errors: InvalidOption with the position of a syntax error."""
    import fastavro  # noqa: PLC0415  (only needed for Avro)
    from fastavro.schema import SchemaParseException  # noqa: PLC0415

    try:
        schema = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidOption(f"{name} is not JSON: {error}", remedy="give the text of an .avsc file") from None
    try:
        fastavro.parse_schema(schema)
    except (SchemaParseException, KeyError, TypeError, ValueError) as error:
        said = f"{type(error).__name__}: {error}"
        raise InvalidOption(f"{name} is not an Avro schema: {said}", remedy="correct the schema") from None
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise InvalidOption(
            f"{name} is not the schema of a record", remedy="give a record, whose fields become columns"
        )
    return schema


def spark_schema(schema: Any) -> dict[str, Any]:
    """The struct of a record's fields. Errors: InvalidOption names the field that is not supported."""
    from fastavro.schema import expand_schema  # noqa: PLC0415

    kind, _ = _kind(expand_schema(schema), "")
    assert isinstance(kind, dict), schema
    return kind


def _kind(schema: Any, path: str) -> tuple[Any, bool]:
    """The Spark type of an expanded schema, and whether it is nullable."""
    if isinstance(schema, list):
        others = [each for each in schema if each != "null"]
        if len(others) != 1:
            raise _refused(path, "union of " + ", ".join(map(_name, others)))
        return _kind(others[0], path)[0], len(others) < len(schema)
    if isinstance(schema, dict):
        return _complex(schema, schema["type"], path), False
    if schema in _PRIMITIVES:
        return _PRIMITIVES[schema], False
    if schema == "null":
        raise _refused(path, schema)
    # Expansion leaves only names of enclosing records.
    raise InvalidOption(
        f"field {path} of the Avro schema contains itself", remedy="Spark does not support recursive types"
    )


def _complex(schema: dict[str, Any], sort: str, path: str) -> Any:
    logical = schema.get("logicalType")
    if logical == "decimal" and sort in {"bytes", "fixed"}:
        return f"decimal({schema['precision']},{schema.get('scale', 0)})"
    if logical is not None and (sort, logical) in _LOGICAL:
        return _LOGICAL[sort, logical]
    if logical in {"time-millis", "time-micros", "timestamp-nanos", "local-timestamp-nanos", "duration"}:
        raise _refused(path, logical)
    match sort:
        case "record":
            fields = []
            for each in schema["fields"]:
                kind, is_nullable = _kind(each["type"], f"{path}.{each['name']}".lstrip("."))
                fields.append({"name": each["name"], "type": kind, "nullable": is_nullable, "metadata": {}})
            return {"type": "struct", "fields": fields}
        case "array":
            kind, is_nullable = _kind(schema["items"], f"{path}[]")
            return {"type": "array", "elementType": kind, "containsNull": is_nullable}
        case "map":
            kind, is_nullable = _kind(schema["values"], f"{path}[]")
            return {"type": "map", "keyType": "string", "valueType": kind, "valueContainsNull": is_nullable}
        case "enum":
            return "string"
        case "fixed":
            return "binary"
    return _kind(sort, path)[0]


def _name(schema: Any) -> str:
    return schema if isinstance(schema, str) else str(schema.get("name") or schema["type"])


def _refused(path: str, what: str) -> InvalidOption:
    return InvalidOption(
        f"field {path} of the Avro schema is a {what}, which no column can represent",
        remedy="export the values without decoding, and decode them with your own program",
    )

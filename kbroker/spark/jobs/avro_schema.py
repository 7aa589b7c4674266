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
_MAX_DEPTH: Final = 50


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
    kind, _ = _Reader().kind(schema, "", 0)
    assert isinstance(kind, dict), schema
    return kind


class _Reader:
    def __init__(self) -> None:
        self._named: dict[str, Any] = {}

    def kind(self, schema: Any, path: str, depth: int) -> tuple[Any, bool]:
        """The Spark type, and whether it is nullable."""
        if depth > _MAX_DEPTH:
            raise InvalidOption(
                f"field {path} of the Avro schema contains itself", remedy="Spark does not support recursive types"
            )
        if isinstance(schema, list):
            return self._union(schema, path, depth)
        if isinstance(schema, str):
            if schema in _PRIMITIVES:
                return _PRIMITIVES[schema], False
            known = self._named.get(schema.rpartition(".")[2])
            if known is None:
                raise _refused(path, schema)
            return self.kind(known, path, depth + 1)
        sort = schema["type"]
        if isinstance(sort, dict | list):
            return self.kind(sort, path, depth + 1)
        if "name" in schema:
            self._named[schema["name"].rpartition(".")[2]] = schema
        return self._complex(schema, sort, path, depth), False

    def _complex(self, schema: dict[str, Any], sort: str, path: str, depth: int) -> Any:
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
                    below = f"{path}.{each['name']}" if path else each["name"]
                    kind, is_nullable = self.kind(each["type"], below, depth + 1)
                    fields.append({"name": each["name"], "type": kind, "nullable": is_nullable, "metadata": {}})
                return {"type": "struct", "fields": fields}
            case "array":
                kind, is_nullable = self.kind(schema["items"], f"{path}[]", depth + 1)
                return {"type": "array", "elementType": kind, "containsNull": is_nullable}
            case "map":
                kind, is_nullable = self.kind(schema["values"], f"{path}[]", depth + 1)
                return {"type": "map", "keyType": "string", "valueType": kind, "valueContainsNull": is_nullable}
            case "enum":
                return "string"
            case "fixed":
                return "binary"
        return self.kind(sort, path, depth + 1)[0]

    def _union(self, schema: list[Any], path: str, depth: int) -> tuple[Any, bool]:
        others = [each for each in schema if each != "null"]
        if len(others) != 1:
            raise _refused(path, "union of " + ", ".join(map(_name, others)))
        return self.kind(others[0], path, depth + 1)[0], len(others) < len(schema)


def _name(schema: Any) -> str:
    return schema if isinstance(schema, str) else str(schema.get("name") or schema["type"])


def _refused(path: str, what: str) -> InvalidOption:
    return InvalidOption(
        f"field {path} of the Avro schema is a {what}, which no column can represent",
        remedy="export the values without decoding, and decode them with your own program",
    )

"""An Avro schema as a Spark schema.

Records become structs, and a union with null a field that may be null; other unions have no counterpart here. Logical
types become what Spark has for them: date, timestamp, decimal; a uuid stays a string, a time of day its number.

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
    """The schema in a text. Errors: InvalidOption, which says where it is none."""
    import fastavro  # noqa: PLC0415  (only who decodes Avro needs it)
    from fastavro.schema import SchemaParseException  # noqa: PLC0415

    try:
        schema = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidOption(f"{name} is no JSON: {error}", remedy="give the schema as an .avsc file has it") from None
    try:
        fastavro.parse_schema(schema)
    except (SchemaParseException, KeyError, TypeError, ValueError) as error:
        said = f"{type(error).__name__}: {error}"
        raise InvalidOption(f"{name} is no Avro schema: {said}", remedy="mend the schema") from None
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise InvalidOption(f"{name} is no schema of a record", remedy="give one whose fields become columns")
    return schema


def spark_schema(schema: Any) -> dict[str, Any]:
    """The struct of a record's fields. Errors: InvalidOption names the field that has no counterpart."""
    kind, _ = _Reader().kind(schema, "", 0)
    assert isinstance(kind, dict), schema
    return kind


class _Reader:
    def __init__(self) -> None:
        self._named: dict[str, Any] = {}

    def kind(self, schema: Any, path: str, depth: int) -> tuple[Any, bool]:
        """A type, and whether it may be null."""
        if depth > _MAX_DEPTH:
            raise InvalidOption(f"field {path} of the Avro schema holds itself", remedy="Spark has no type for it")
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
        f"field {path} of the Avro schema is a {what}, for which there is no column",
        remedy="export the values as they are, and decode them with a program of your own",
    )

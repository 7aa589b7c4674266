"""Compare every declaration of `wire` with the JSON schemas inside Apache Kafka's jars.

    python -m compat.schemas.check DIRECTORY_OF_JARS        (or the environment variable KBROKER_KAFKA_LIBS)

For each version it compares the fields and their order, their types, which are nullable and which are tagged with which
tag; for each field also its default and whether it is ignorable; for each schema its key, versions and flexible
versions. Prints every difference and a summary, and exits with 1 if there is a difference.

Names of structs are not compared: they are not on the wire, and two structs of one name in a file need different names.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import wire.messages
import wire.stored
from wire.schema import EMPTY_STRUCT, MISSING, Field, Schema, Versions, declared_in, schema_of
from wire.types import Primitive

NOT_DECLARED = {
    r"(Controlled|LeaderAndIsr|StopReplica|UpdateMetadata)\w*": "of ZooKeeper's time: no valid version is left",
    r"(RequestHeader|ResponseHeader)": "written by hand in wire/framing.py",
    r"(ProducerSnapshot|ControlRecordTypeSchema)": "written by hand in producer_state.py and control_records.py",
    r"\w*Share\w*|Streams\w*": "share groups and streams groups are not served",
    r"\w*DelegationToken(Request|Response)": "delegation tokens are not served",
    r"(GetTelemetrySubscriptions|PushTelemetry)\w*": "telemetry is not served",
    r"(AddRaftVoter|RemoveRaftVoter|UpdateRaftVoter|Vote|BeginQuorumEpoch|EndQuorumEpoch)(Request|Response)":
        "between members of a controller quorum",
    r"QuorumStateData": "a file that is JSON",
}  # fmt: skip
"""The schemas without a declaration, as patterns of their names, and why."""


class Difference(NamedTuple):
    """One difference between the schema and the declaration."""

    where: str
    what: str
    kafka: object
    ours: object

    def __str__(self) -> str:
        return f"{self.where}: {self.what} is {self.kafka} for Kafka, {self.ours} here"


def load_schemas(libs: Path) -> dict[str, dict[str, Any]]:
    """The schemas in a directory of jars, by name."""
    schemas: dict[str, dict[str, Any]] = {}
    for jar in sorted(libs.glob("*.jar")):
        with zipfile.ZipFile(jar) as archive:
            for name in archive.namelist():
                if re.fullmatch(r"(common/)?(message|metadata)/\w+\.json", name):
                    schema = parse_json(archive.read(name).decode())
                    schemas[schema["name"]] = schema
    return schemas


def parse_json(text: str) -> dict[str, Any]:
    """JSON with comments to the end of a line."""
    parsed: dict[str, Any] = json.loads(re.sub(r'("(?:\\.|[^"\\])*")|//[^\n]*', lambda match: match[1] or "", text))
    return parsed


def load_declarations() -> dict[str, type]:
    """The messages and stored records that wire declares, by name."""
    declared: dict[str, type] = {}
    for package in (wire.messages, wire.stored):
        for module in pkgutil.iter_modules(package.__path__):
            for cls in declared_in(importlib.import_module(f"{package.__name__}.{module.name}")):
                declared[cls.__name__] = cls
    return declared


def snake_case(name: str) -> str:
    """Kafka's name of a field as an attribute: ThrottleTimeMs -> throttle_time_ms."""
    name = name.replace("KRaft", "Kraft").replace("2Pc", "_2pc")
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return re.sub(r"(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def compare(schema: dict[str, Any], cls: type) -> Iterator[Difference]:
    """The differences between one of Kafka's schemas and the class that declares it."""
    ours = schema_of(cls)
    name = schema["name"]
    kafka_valid = Versions.parse(schema["validVersions"])
    number = "api_key" if schema["type"] in ("request", "response") else "record_type"
    kind = schema["type"] if number == "api_key" else "stored"
    for what, kafka, here in (
        ("type", kind, ours.kind),
        ("validVersions", kafka_valid, ours.versions),
        ("flexibleVersions", _within(schema["flexibleVersions"], kafka_valid), _flexible_versions(ours)),
        ("apiKey", schema.get("apiKey"), getattr(ours, number)),
    ):
        if kafka != here:
            yield Difference(name, what, kafka, here)
    common = {struct["name"]: struct["fields"] for struct in schema.get("commonStructs", [])}
    yield from _compare_fields(name, schema["fields"], cls, list(_within(schema["validVersions"], kafka_valid)), common)


def _compare_fields(
    where: str, fields: list[dict[str, Any]], cls: type, versions: list[int], common: dict[str, Any]
) -> Iterator[Difference]:
    """Compare a struct's fields in those versions of the message in which the struct occurs."""
    ours = {field.name: field for field in schema_of(cls).fields}
    for version in versions:
        kafka_shape = [_kafka_shape(field, version) for field in fields if version in _field_versions(field)]
        our_shape = [_our_shape(field, version) for field in ours.values() if version in field.versions]
        if kafka_shape != our_shape:
            for theirs, mine in zip(kafka_shape, our_shape, strict=False):
                if theirs != mine:
                    yield Difference(where, f"version {version}", theirs, mine)
            if len(kafka_shape) != len(our_shape):
                kafka_names = [shape.name for shape in kafka_shape]
                yield Difference(where, f"version {version}", kafka_names, [shape.name for shape in our_shape])
    for field in fields:
        here = ours.get(snake_case(field["name"]))
        present = [version for version in versions if version in _field_versions(field)]
        if here is None:
            if present:
                yield Difference(where, field["name"], "declared", "missing")
            continue
        inner = f"{where}.{field['name']}"
        if not _same_default(field, here, always_present=present == versions):
            yield Difference(inner, "default", repr(_kafka_default(field)), repr(here.default))
        ignorable = str(field.get("ignorable", False)).lower() == "true"
        if present != versions and ignorable != here.ignorable:
            yield Difference(inner, "ignorable", ignorable, here.ignorable)
        element = field["type"].removeprefix("[]")
        if element[0].isupper() and isinstance(here.kind, type) and present:
            yield from _compare_fields(inner, field.get("fields") or common[element], here.kind, present, common)


class _Shape(NamedTuple):
    """The properties of a field in one version that affect the bytes."""

    name: str
    type: str
    nullable: bool
    tag: int | None


def _kafka_shape(field: dict[str, Any], version: int) -> _Shape:
    array, element = field["type"].startswith("[]"), field["type"].removeprefix("[]")
    kind = "struct" if element[0].isupper() else element
    tag = field["tag"] if version in Versions.parse(field.get("taggedVersions", "none")) else None
    nullable = version in Versions.parse(field.get("nullableVersions", "none"))
    return _Shape(snake_case(field["name"]), f"[]{kind}" if array else kind, nullable, tag)


def _our_shape(field: Field, version: int) -> _Shape:
    kind = field.kind.name if isinstance(field.kind, Primitive) else "struct"
    tag = field.tag if version in field.tagged else None
    return _Shape(field.name, f"[]{kind}" if field.is_array else kind, version in field.nullable, tag)


def _field_versions(field: dict[str, Any]) -> Versions:
    return Versions.parse(field.get("versions") or field["taggedVersions"])


def _within(text: str, valid: Versions) -> range:
    versions = Versions.parse(text)
    return range(max(versions.lowest, valid.lowest), min(versions.highest, valid.highest) + 1)


def _flexible_versions(schema: Schema) -> range:
    return _within(str(schema.flexible), schema.versions)


_ZEROES: dict[str, Any] = {"string": "", "bytes": b"", "uuid": UUID(int=0), "float64": 0.0, "records": None}


def _kafka_default(field: dict[str, Any]) -> Any:
    """The default of Kafka's class for a field; MISSING stands for a struct's default instance."""
    given, kind = field.get("default"), field["type"]
    if given == "null":
        return None
    if kind.startswith("[]"):
        return []
    if kind[0].isupper():
        return MISSING
    if kind == "bool":
        return str(given).lower() == "true"
    if given in (None, ""):
        return _ZEROES.get(kind, 0)
    return given if kind == "string" else float(given) if kind == "float64" else int(str(given), 0)


def _same_default(field: dict[str, Any], here: Field, *, always_present: bool) -> bool:
    kafka = _kafka_default(field)
    if here.default is MISSING:
        # Required here: correct only if Kafka has no default and no version falls back to one.
        return "default" not in field and "tag" not in field and always_present
    if kafka is MISSING:
        # A tagged struct: None stands for the default instance, which is not sent, unless it means null.
        return here.tag is not None and here.default is (EMPTY_STRUCT if "nullableVersions" in field else None)
    return type(kafka) is type(here.default) and bool(kafka == here.default)


def check(libs: Path) -> tuple[list[Difference], str]:
    """All differences, and a line that summarizes the comparison."""
    schemas, declarations = load_schemas(libs), load_declarations()
    differences: list[Difference] = []
    compared = fields = left_out = 0
    for name, schema in sorted(schemas.items()):
        cls = declarations.pop(name, None)
        excused = any(re.fullmatch(pattern, name) for pattern in NOT_DECLARED)
        if cls is not None and excused:
            differences.append(Difference(name, "declaration", "there", "in NOT_DECLARED"))
        if cls is not None:
            differences += compare(schema, cls)
            compared += len(_within(schema["validVersions"], Versions.parse(schema["validVersions"])))
            fields += _count_fields(schema)
        elif excused:
            left_out += 1
        else:
            differences.append(Difference(name, "schema", "there", "not declared"))
    differences += [Difference(name, "schema", "absent", "declared") for name in declarations]
    found = f"{len(schemas) - left_out} schemas in {compared} versions with {fields} fields compared"
    return differences, f"{found}, {left_out} left out on purpose: {len(differences)} differences"


def _count_fields(schema: dict[str, Any]) -> int:
    lists = [schema["fields"], *(struct["fields"] for struct in schema.get("commonStructs", []))]
    return sum(1 + _count_fields({"fields": field.get("fields", [])}) for fields in lists for field in fields)


def main() -> int:
    parser = argparse.ArgumentParser(description="compare wire's declarations with Apache Kafka's schemas")
    parser.add_argument("libs", nargs="?", type=Path, default=os.environ.get("KBROKER_KAFKA_LIBS"))
    libs = parser.parse_args().libs
    if libs is None:
        parser.error("give the directory of Kafka's jars, or set KBROKER_KAFKA_LIBS")
    differences, summary = check(Path(libs))
    if not differences and summary.startswith("0 "):
        parser.error(f"no schemas in {libs}")
    for difference in differences:
        print(difference)
    print(summary)
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())

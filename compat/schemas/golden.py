"""Encode the filler's values with Kafka's own classes, in every version of every declared class, and compare.

Stored records are also decoded by Kafka's classes and encoded again, with undeclared tagged fields.

    python -m compat.schemas.golden DIRECTORY_OF_JARS [--write DIRECTORY_OF_FIXTURES]

Kafka's JSON converters read the values and its message classes serialise them (Golden.java, run by `java`). With
--write the lengths and checksums of Kafka's bytes go into a fixture, and the bytes of a few messages into another one;
tests compare them with ours on machines without Java.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path
from typing import Any
from uuid import UUID

from compat.kafka.libraries import java
from compat.schemas.check import load_declarations, load_schemas, snake_case
from compat.schemas.filler import full, sparse
from wire.codec import decode, encode
from wire.schema import is_struct, schema_of
from wire.types import Primitive, uuid_to_text

CHECKSUMS, BYTES, REWRITTEN = "kafka_4.3.1_checksums.txt", "kafka_4.3.1_bytes.txt", "kafka_4.3.1_rewritten.txt"
SAMPLES = {
    ("ApiVersionsResponse", 3), ("MetadataResponse", 1), ("MetadataResponse", 12), ("ProduceRequest", 7),
    ("ProduceRequest", 11), ("FetchRequest", 4), ("FetchRequest", 17), ("FetchResponse", 12), ("FetchResponse", 17),
    ("DescribeTopicPartitionsResponse", 0), ("PartitionChangeRecord", 2), ("RegisterBrokerRecord", 4),
}  # fmt: skip
"""The messages whose complete bytes are stored."""
REWRITTEN_SAMPLES = {
    ("RegisterBrokerRecord", 4), ("PartitionRecord", 2), ("ConsumerGroupMemberMetadataValue", 0),
    ("OffsetCommitValue", 4),
}  # fmt: skip
UNKNOWN_TAGS = ((50, b"tag"), (1_000, b""), (70_000, bytes(200)))


def cases() -> list[tuple[type, int, str, Any]]:
    """(class, version, name of the filling, value) of every comparison."""
    return [
        (cls, version, filling.__name__, filling(cls, version))
        for _, cls in sorted(load_declarations().items())
        for version in range(schema_of(cls).versions.lowest, schema_of(cls).versions.highest + 1)
        for filling in (full, sparse)
    ]


def rewritings() -> list[tuple[type, int, bytes]]:
    """(class, version, bytes) of stored records as a later broker may write them."""
    found = []
    for cls, version, filling, value in cases():
        if schema_of(cls).kind == "stored" and version in schema_of(cls).flexible:
            plain = encode(value, version)
            if filling == "sparse":
                assert plain[-1] == 0, "a sparse value has no tagged fields"
                for field in schema_of(cls).fields:
                    if version in field.tagged and version in field.nullable and not isinstance(field.kind, Primitive):
                        found.append((cls, version, plain[:-1] + bytes([1, field.tag or 0, 1, 0])))
            add_unknown_tags(value)
            found.append((cls, version, encode(value, version)))
    return found


def add_unknown_tags(value: Any) -> None:
    """Add tagged fields that the schema does not have to a record and to each struct in it."""
    value.unknown_tagged_fields = UNKNOWN_TAGS
    for field in schema_of(type(value)).fields:
        held = getattr(value, field.name)
        for part in held if isinstance(held, list) else [held]:
            if is_struct(type(part)):
                add_unknown_tags(part)


def to_json(value: Any, fields: list[dict[str, Any]], common: dict[str, Any], version: int) -> Any:
    """A value in the form of Kafka's JSON converters: fields in lower camel case, bytes and ids in base64."""
    names = {snake_case(field["name"]): field for field in fields}
    answer = {}
    for ours in schema_of(type(value)).fields:
        held = getattr(value, ours.name)
        if version not in ours.versions or (version in ours.tagged and held == ours.default):
            continue
        field = names[ours.name]
        element = field["type"].removeprefix("[]")
        inner = field.get("fields") or common.get(element, [])
        key = field["name"][0].lower() + field["name"][1:]
        if isinstance(held, list):
            answer[key] = [_scalar_or_struct(item, inner, common, version) for item in held]
        else:
            answer[key] = _scalar_or_struct(held, inner, common, version)
    return answer


def _scalar_or_struct(value: Any, fields: list[dict[str, Any]], common: dict[str, Any], version: int) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, UUID):
        return uuid_to_text(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return to_json(value, fields, common, version)


def java_classes(libs: Path) -> dict[str, str]:
    """The classes of Kafka that have a JSON converter, by the name of their schema."""
    found = {}
    for jar in libs.glob("*.jar"):
        with zipfile.ZipFile(jar) as archive:
            for name in archive.namelist():
                if match := re.fullmatch(r"(org/apache/kafka/\S+/(\w+?)(Data)?)JsonConverter\.class", name):
                    found[match[2]] = found[match[2] + (match[3] or "")] = match[1].replace("/", ".")
    return found


def ask_kafka(libs: Path) -> list[bytes | str]:
    """Kafka's encoding of each case and of each decoded rewriting, or the error of its classes."""
    schemas, classes, lines = load_schemas(libs), java_classes(libs), []
    for cls, version, _, value in cases():
        schema = schemas[cls.__name__]
        common = {struct["name"]: struct["fields"] for struct in schema.get("commonStructs", [])}
        as_json = json.dumps(to_json(value, schema["fields"], common, version))
        lines.append(f"{classes[cls.__name__]} {version} {as_json}")
    for cls, version, data in rewritings():
        lines.append(f"{classes[cls.__name__]} {version} hex:{data.hex()}")
    source = Path(__file__).with_name("Golden.java")
    command = [java(), "-Dfile.encoding=UTF-8", "-cp", f"{libs}/*", str(source)]
    run = subprocess.run(command, input="\n".join(lines), stdout=subprocess.PIPE, text=True, check=True)
    answers = run.stdout.splitlines()
    return [answer if answer.startswith("error") else bytes.fromhex(answer) for answer in answers]


def fixture_line(cls: type, version: int, filling: str, data: bytes) -> str:
    """The fixture line of one encoding."""
    return f"{cls.__name__} {version} {filling} {len(data)} {zlib.crc32(data):08x}"


def main() -> int:
    parser = argparse.ArgumentParser(description="compare encodings with those of Apache Kafka's own classes")
    parser.add_argument("libs", type=Path)
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    checksums, samples, differences, total = [], [], 0, 0
    answers = ask_kafka(arguments.libs)
    rewritten = []
    for (cls, version, data), theirs in zip(rewritings(), answers[len(cases()) :], strict=True):
        ours = encode(decode(cls, version, data, exact=True), version)
        total += 1
        if isinstance(theirs, bytes) and (cls.__name__, version) in REWRITTEN_SAMPLES:
            rewritten.append(f"{cls.__name__} {version} {data.hex()} {theirs.hex()}")
        if ours != theirs:
            differences += 1
            print(f"{cls.__name__} version {version} from {data.hex()}:\n  ours   {ours.hex()}")
            print(f"  Kafka  {theirs.hex() if isinstance(theirs, bytes) else theirs}")
    for (cls, version, filling, value), theirs in zip(cases(), answers[: len(cases())], strict=True):
        ours = encode(value, version)
        total += 1
        if isinstance(theirs, bytes):
            checksums.append(fixture_line(cls, version, filling, theirs))
            if (cls.__name__, version) in SAMPLES:
                samples.append(f"{cls.__name__} {version} {filling} {theirs.hex()}")
        if ours != theirs:
            differences += 1
            print(f"{cls.__name__} version {version} {filling}:\n  ours   {ours.hex()}")
            print(f"  Kafka  {theirs.hex() if isinstance(theirs, bytes) else theirs}")
    if arguments.write:
        (arguments.write / CHECKSUMS).write_text("\n".join(checksums) + "\n")
        (arguments.write / BYTES).write_text("\n".join(samples) + "\n")
        (arguments.write / REWRITTEN).write_text("\n".join(rewritten) + "\n")
    print(f"{total} encodings compared, {differences} differences")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())

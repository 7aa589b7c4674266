"""`kbroker produce`: write lines, or records in JSON, to a topic of any broker.

One line is one record. The command sends lines as they arrive. It exits with 0 only if the broker has acknowledged all
of them.
"""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from kbroker.cli import CommandFailed, Commands
from kbroker.cli import _positions as parse
from kbroker.cli._admin import add_client_flags, client_errors, client_settings, quiet_client
from kbroker.cli._records import NotARecord, Outgoing, header, lines, record_from_json, separator

if TYPE_CHECKING:
    from kafka import KafkaProducer

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
MAX_UNACKNOWLEDGED: Final = 10_000
MAX_UNACKNOWLEDGED_BYTES: Final = 32 << 20
METADATA_TIMEOUT_MS: Final = 10_000
CLOSE_TIMEOUT_S: Final = 5


def add_parser(commands: Commands) -> None:
    """Declare the command and its flags."""
    parser = commands.add_parser(
        "produce",
        help="write lines to a topic",
        description="Write the lines of standard input, or of a file, to a topic on any Kafka-compatible broker.",
    )
    add_client_flags(parser)
    parser.add_argument("-t", "--topic", required=True, type=_topic, metavar="NAME", help="topic")
    parser.add_argument("-p", "--partition", type=parse.partition, metavar="N", help="partition of all records")
    parser.add_argument("--file", type=Path, metavar="FILE", help="read this file instead of standard input")
    parser.add_argument(
        "--format", choices=["text", "json"], default="text",
        help="text: each line is a value; json: each line is a record in the format of `consume --format json`",
    )  # fmt: skip
    text = parser.add_argument_group("options of --format text")
    text.add_argument("-K", "--key-separator", type=separator, metavar="TEXT", help="text between key and value")
    text.add_argument("-k", "--key", metavar="TEXT", help="key of all records")
    text.add_argument("-H", "--header", action="append", type=header, metavar="NAME=VALUE", help="header; repeatable")
    text.add_argument("-D", "--delimiter", type=separator, default=b"\n", metavar="TEXT", help="end of a record")
    text.add_argument(
        "-Z", "--null-marker", metavar="TEXT", help="key or value that stands for null; a null value is a tombstone"
    )
    text.add_argument(
        "--timestamp",
        type=partial(parse.integer, at_least=0),
        metavar="MS",
        help="timestamp of all records (default now)",
    )
    parser.add_argument(
        "-z", "--compression-codec", nargs="?", const="gzip", default="none", choices=CODECS, metavar="CODEC",
        help=f"{', '.join(CODECS)} (default none; gzip if given without a value)",
    )  # fmt: skip
    parser.add_argument(
        "--acks", "--request-required-acks", choices=["0", "1", "-1", "all"], default="all",
        help="acknowledgements that the leader waits for (default all)",
    )  # fmt: skip
    parser.add_argument(
        "--idempotence", action=argparse.BooleanOptionalAction, default=None,
        help="write no record twice when a request is retried (default with --acks all)",
    )  # fmt: skip
    parser.set_defaults(run=partial(produce, parser))


def _topic(text: str) -> str:
    found = parse.topic_partitions(text)
    if found.partitions is not None:
        raise argparse.ArgumentTypeError(f"{text!r} names partitions; use --partition to choose one")
    return found.topic


def produce(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Send all records and wait until the broker has acknowledged them."""
    acks = {"0": 0, "1": 1}.get(options.acks, "all")
    if options.idempotence and acks != "all":
        parser.error(f"--idempotence cannot be used with --acks {options.acks}")
    if options.key is not None and options.key_separator is not None:
        parser.error("--key cannot be used with --key-separator")
    if options.format == "json":
        for name in ("key_separator", "key", "header", "null_marker", "timestamp"):
            if getattr(options, name) is not None:
                parser.error(f"--{name.replace('_', '-')} cannot be used with --format json")
    quiet_client()
    from kafka import KafkaProducer  # noqa: PLC0415  (--help must not import the client)

    settings: dict[str, Any] = {
        "max_block_ms": METADATA_TIMEOUT_MS,
        **client_settings(options, known=KafkaProducer.DEFAULT_CONFIG),
        "acks": acks,
        "enable_idempotence": options.idempotence if options.idempotence is not None else acks == "all",
        "compression_type": None if options.compression_codec == "none" else options.compression_codec,
    }
    stream = _open(options.file)
    try:
        with client_errors(settings):
            producer = KafkaProducer(**settings)
            try:
                _send_all(producer, stream, options)
            finally:
                producer.close(timeout=CLOSE_TIMEOUT_S)
    finally:
        if options.file is not None:
            stream.close()


def _open(path: Path | None) -> BinaryIO:
    if path is None:
        return sys.stdin.buffer
    try:
        return path.open("rb")
    except OSError as error:
        raise CommandFailed(f"cannot read {path}: {error.strerror}") from error


def _send_all(producer: KafkaProducer, stream: BinaryIO, options: argparse.Namespace) -> None:
    """Send all records. The number and the bytes of unacknowledged records are bounded."""
    waiting: deque[tuple[int, int, Any]] = deque()
    waiting_bytes = 0
    for number, record in _read(stream, options):
        size = len(record.key or b"") + len(record.value or b"")
        partition = options.partition if options.partition is not None else record.partition
        try:
            future = producer.send(
                options.topic,
                value=record.value,
                key=record.key,
                headers=record.headers,
                partition=partition,
                timestamp_ms=record.timestamp,
            )
        except (TypeError, ValueError, AssertionError) as error:
            raise CommandFailed(f"line {number} cannot be sent: {error}") from error
        waiting.append((number, size, future))
        waiting_bytes += size
        while waiting and (len(waiting) > MAX_UNACKNOWLEDGED or waiting_bytes > MAX_UNACKNOWLEDGED_BYTES):
            waiting_bytes -= _wait(waiting.popleft())
    producer.flush()
    while waiting:
        _wait(waiting.popleft())


def _wait(sent: tuple[int, int, Any]) -> int:
    """Wait until a record is acknowledged; return its size."""
    from kafka.errors import KafkaError  # noqa: PLC0415

    from kbroker.cli._admin import explain  # noqa: PLC0415

    number, size, future = sent
    try:
        future.get()
    except KafkaError as error:
        raise CommandFailed(f"line {number} was not stored, and later lines may be lost: {explain(error)}") from error
    return size


def _read(stream: BinaryIO, options: argparse.Namespace) -> Iterator[tuple[int, Outgoing]]:
    """The records of the input, each with its line number."""
    make = record_from_json if options.format == "json" else _text_reader(options)
    number = 0
    try:
        for line in lines(stream, options.delimiter):
            number += 1
            if line.strip() or options.format == "text":
                yield number, make(line)
    except NotARecord as error:
        raise CommandFailed(f"line {max(number, 1)}: {error}") from error
    except OSError as error:
        raise CommandFailed(f"cannot read {options.file or 'standard input'}: {error.strerror}") from error


def _text_reader(options: argparse.Namespace) -> Any:
    null = None if options.null_marker is None else options.null_marker.encode("utf-8", "surrogateescape")
    fixed_key = None if options.key is None else options.key.encode("utf-8", "surrogateescape")
    headers = list(options.header or [])

    def make(line: bytes) -> Outgoing:
        key, value = fixed_key, line
        if options.key_separator is not None:
            key, found, value = line.partition(options.key_separator)
            if not found:
                raise NotARecord(f"no key: {options.key_separator.decode(errors='replace')!r} is missing")
        return Outgoing(
            key=None if key == null else key,
            value=None if value == null else value,
            headers=headers,
            timestamp=options.timestamp,
        )

    return make

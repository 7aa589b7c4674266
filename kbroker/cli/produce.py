"""`kbroker produce`: write lines, or records in JSON, to a topic of any broker.

One line is one record. The command sends lines as they arrive. It exits with 0 only if the broker has acknowledged all
of them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from kbroker.cli import CommandFailed, Commands
from kbroker.cli import _positions as parse
from kbroker.cli._admin import add_client_flags, client_settings, connected, explain
from kbroker.cli._progress import Progress
from kbroker.cli._records import NotARecord, Outgoing, header, lines, record_from_json, separator
from kbroker.cli._say import note

if TYPE_CHECKING:
    from kbroker.client.cluster import Cluster
    from kbroker.client.producing import Producer
    from wire.record_batch import Record

BATCH_BYTES: Final = 512 << 10
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


Send = Callable[[list[bytes], int], None]
"""Sends lines, of which the first has this number."""


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
    acks = {"0": 0, "1": 1}.get(options.acks, -1)
    if options.idempotence and acks != -1:
        parser.error(f"--idempotence cannot be used with --acks {options.acks}")
    if options.key is not None and options.key_separator is not None:
        parser.error("--key cannot be used with --key-separator")
    if options.format == "json":
        for name in ("key_separator", "key", "header", "null_marker", "timestamp"):
            if getattr(options, name) is not None:
                parser.error(f"--{name.replace('_', '-')} cannot be used with --format json")
    from kbroker.client.producing import SETTINGS, Producer  # noqa: PLC0415  (--help must not import the client)
    from wire.compression import Codec  # noqa: PLC0415

    settings = {"batch_size": BATCH_BYTES, **client_settings(options, known=SETTINGS)}
    with (
        _open(options.file) as stream,
        connected(settings) as cluster,
        Progress("produce", "sent", cluster) as progress,
    ):
        is_idempotent = acks == -1 if options.idempotence is None else options.idempotence
        codec = Codec[options.compression_codec.upper()]
        producer = Producer(cluster, options.topic, settings, acks=acks, codec=codec, is_idempotent=is_idempotent)
        if producer.creates_topic:
            note(f"kbroker produce: topic {options.topic!r} did not exist, so the broker has created it")
        _send_all(producer, cluster, stream, options, progress=progress, linger_ms=settings.get("linger_ms", 0))


def _open(path: Path | None) -> AbstractContextManager[BinaryIO]:
    if path is None:
        if sys.stdin is None:
            raise CommandFailed("standard input is closed")
        return nullcontext(sys.stdin.buffer)
    try:
        return path.open("rb")
    except OSError as error:
        raise CommandFailed(f"cannot read {path}: {error.strerror}") from error


def _send_all(
    producer: Producer,
    cluster: Cluster,
    stream: BinaryIO,
    options: argparse.Namespace,
    *,
    progress: Progress,
    linger_ms: int,
) -> None:
    """Send all records. When no input is available, what was read is sent at once."""
    from kbroker.client.producing import NotStored, RecordTooLarge  # noqa: PLC0415

    def before_read() -> None:
        while not _has_input(stream, linger_ms) and producer.proceed():
            pass

    if options.partition is not None and options.partition >= producer.partition_count:
        raise CommandFailed(f"topic {options.topic!r} has no partition {options.partition}")
    send = (_values_sender if _has_only_values(options) else _records_sender)(producer, cluster, options)
    try:
        with producer:  # flushes, also after a line that cannot be sent
            if stream.isatty():
                note("Each line is a record. Ctrl-D ends the input.")
            number = 1
            for group in _lines(stream, options, before_read):
                send(group, number)
                number += len(group)
                progress.add(len(group), sum(map(len, group)))
    except RecordTooLarge as error:
        raise CommandFailed(f"line {error.number} cannot be sent: {error.message}") from error
    except NotStored as error:
        # Lines before it may wait for other partitions.
        lost = "later lines" if error.first == error.number else f"lines from {error.first} on"
        said = explain(error.reason)
        raise CommandFailed(f"line {error.number} was not stored, and {lost} may be lost: {said}") from error


def _lines(
    stream: BinaryIO, options: argparse.Namespace, before_read: Callable[[], object]
) -> Iterator[list[bytes]]:  # fmt: skip
    number = 1
    try:
        for group in lines(stream, options.delimiter, before_read):
            yield group
            number += len(group)
    except NotARecord as error:
        raise CommandFailed(f"line {number}: {error}") from error
    except OSError as error:
        raise CommandFailed(f"cannot read {options.file or 'standard input'}: {error.strerror}") from error


def _has_input(stream: BinaryIO, wait_ms: int) -> bool:
    from select import select  # noqa: PLC0415

    try:
        return bool(select([stream], [], [], wait_ms / 1000)[0])
    except (OSError, ValueError):  # not a file of the operating system
        return True


def _has_only_values(options: argparse.Namespace) -> bool:
    """Whether the records differ only in their values, which are whole lines."""
    return options.format == "text" and options.key_separator is None and options.null_marker is None


def _values_sender(producer: Producer, cluster: Cluster, options: argparse.Namespace) -> Send:
    from wire.record_values import ValueEncoder  # noqa: PLC0415

    encoder = ValueEncoder(_bytes(options.key), options.header or ())

    def send(group: list[bytes], number: int) -> None:
        timestamp_ms = cluster.env.timestamp_ms() if options.timestamp is None else options.timestamp
        producer.send_values(group, encoder, timestamp_ms=timestamp_ms, partition=options.partition, number=number)

    return send


def _records_sender(producer: Producer, cluster: Cluster, options: argparse.Namespace) -> Send:
    make = record_from_json if options.format == "json" else _text_reader(options)

    def send(group: list[bytes], number: int) -> None:
        for at, line in enumerate(group, number):
            if not line.strip() and options.format == "json":
                continue
            try:
                each = make(line)
            except NotARecord as error:
                raise CommandFailed(f"line {at}: {error}") from error
            partition = options.partition if options.partition is not None else each.partition
            try:
                record = _checked(each, partition, producer.partition_count, cluster.env.timestamp_ms)
            except ValueError as error:
                raise CommandFailed(f"line {at} cannot be sent: {error}") from error
            producer.send(record, partition=partition, number=at)

    return send


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "surrogateescape")


def _checked(each: Outgoing, partition: int | None, partition_count: int, now_ms: Callable[[], int]) -> Record:
    """The record to send. Errors: ValueError."""
    from wire.record_batch import Record  # noqa: PLC0415

    if each.key is None and each.value is None:
        raise ValueError("it has neither a key nor a value")
    if partition is not None and partition >= partition_count:
        raise ValueError(f"the topic has no partition {partition}")
    timestamp = now_ms() if each.timestamp is None else each.timestamp
    return Record(-1, timestamp, each.key, each.value, tuple(each.headers))


def _text_reader(options: argparse.Namespace) -> Any:
    null, fixed_key = _bytes(options.null_marker), _bytes(options.key)
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

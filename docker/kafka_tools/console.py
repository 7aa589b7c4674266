"""kafka-console-producer and kafka-console-consumer: their flags and properties, translated for kbroker's commands."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from kbroker import cli
from kbroker.cli import CommandFailed, Parser
from kbroker.cli._admin import add_connection_flags, admin_client, read_properties
from kbroker.cli._consuming import read
from kbroker.cli._payloads import CLASSES
from kbroker.cli._positions import Position, Range, TopicPartitions, count, milliseconds, pair, partition
from kbroker.client.consuming import Received
from wire.errors import ErrorCode, KafkaError

EXIT_TERMINATED: Final = 143
LOOK_MS: Final = 200
# Flags that only tune Kafka's producer.
_TUNING: Final = (
    "batch-size", "max-block-ms", "max-memory-bytes", "max-partition-memory-bytes", "message-send-max-retries",
    "metadata-expiry-ms", "request-timeout-ms", "retry-backoff-ms", "socket-buffer-size", "timeout",
)  # fmt: skip
_PLAIN_READERS: Final = ("org.apache.kafka.tools.LineMessageReader", "kafka.tools.ConsoleProducer$LineMessageReader")
_DECODERS: Final[Mapping[str, Callable[[bytes], str]]] = {
    f"org.apache.kafka.common.serialization.{kind}Deserializer": CLASSES[f"org.apache.kafka.tools.api.{kind}Decoder"]
    for kind in ("Integer", "Long")
}
_PLAIN_DECODERS: Final = tuple(
    f"org.apache.kafka.common.serialization.{kind}Deserializer" for kind in ("String", "ByteArray")
)
_PLAIN_FORMATTERS: Final = (
    "org.apache.kafka.tools.consumer.DefaultMessageFormatter",
    "kafka.tools.DefaultMessageFormatter",
)
_TIMESTAMP_TYPES: Final = {0: "CreateTime", 1: "LogAppendTime"}


def _parser(tool: str, config_flag: str, property_flag: str) -> Parser:
    """A parser with the client's flags, under the names of older releases too."""
    parser = Parser(prog=tool)
    add_connection_flags(parser)
    for name in (property_flag, "--command-property"):
        parser.add_argument(name, action="append", dest="command_property", type=pair, metavar="KEY=VALUE")
    parser.add_argument(config_flag, dest="command_config", type=Path, metavar="FILE")
    return parser


def _flag(value: str | None, *, default: bool) -> bool:
    return default if value is None else value.strip().lower() == "true"


def _literal(text: str) -> str:
    """Text for a flag of kbroker that knows escapes; Kafka's properties know none."""
    return text.replace("\\", "\\\\")


def produce(words: Sequence[str]) -> int:
    """kafka-console-producer."""
    parser = _parser("kafka-console-producer", "--producer.config", "--producer-property")
    parser.add_argument("--broker-list", action="append", dest="bootstrap_servers", metavar="HOST:PORT")
    parser.add_argument("--topic", required=True)
    for name in ("--property", "--reader-property"):
        parser.add_argument(name, action="append", dest="properties", default=[], type=pair, metavar="KEY=VALUE")
    parser.add_argument("--line-reader", choices=_PLAIN_READERS, default=_PLAIN_READERS[0])
    parser.add_argument("--compression-codec", nargs="?", const="gzip", default="none")
    parser.add_argument("--request-required-acks", default="-1")
    parser.add_argument("--sync", action="store_true", help="has no effect: each line is acknowledged anyway")
    for name in _TUNING:
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    options = parser.parse_args(list(words))
    found = dict(options.properties)
    has_key = _flag(found.pop("parse.key", None), default=False)
    separator = found.pop("key.separator", "\t")
    null = found.pop("null.marker", None)
    if _flag(found.pop("parse.headers", None), default=False):
        raise CommandFailed("parse.headers is not supported; use `kbroker produce --header NAME=VALUE`")
    for name in ("headers.delimiter", "headers.separator", "headers.key.separator"):
        found.pop(name, None)  # without parse.headers they have no effect
    if found:
        raise CommandFailed(f"the property {min(found)} is not supported")
    passed = ["produce", "--topic", options.topic, "--acks", options.request_required_acks]
    passed += ["--compression-codec", options.compression_codec]
    passed += ["--key-separator", _literal(separator)] if has_key else []
    passed += ["--null-marker", null] if null is not None else []
    for server in options.bootstrap_servers or []:
        passed += ["--bootstrap-server", server]
    for key, value in options.command_property or []:
        passed += ["--command-property", f"{key}={value}"]
    passed += ["--command-config", str(options.command_config)] if options.command_config else []
    return cli.main(passed)


def consume(words: Sequence[str]) -> int:
    """kafka-console-consumer. Like Kafka's, it succeeds if --timeout-ms passes, and reports its records."""
    parser = _parser("kafka-console-consumer", "--consumer.config", "--consumer-property")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partition", type=partition)
    parser.add_argument("--offset")
    parser.add_argument("--from-beginning", action="store_true")
    parser.add_argument("--max-messages", type=count, dest="count")
    parser.add_argument("--timeout-ms", type=milliseconds)
    parser.add_argument("--group")
    parser.add_argument("--isolation-level", choices=["read_committed", "read_uncommitted"], default="read_uncommitted")
    parser.add_argument("--skip-message-on-error", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--formatter", choices=_PLAIN_FORMATTERS)
    for what in ("key", "value"):
        parser.add_argument(f"--{what}-deserializer")
    for name in ("--property", "--formatter-property"):
        parser.add_argument(name, action="append", dest="properties", default=[], type=pair, metavar="KEY=VALUE")
    options = parser.parse_args(list(words))
    settings = read_properties(options.command_config) if options.command_config else {}
    settings |= dict(options.command_property or [])
    has_partition = options.partition is not None
    options.isolation_level = settings.pop("isolation.level", options.isolation_level)
    options.group = options.group or settings.pop("group.id", None)
    begin = "earliest" if options.from_beginning else "latest"
    reset = settings.pop("auto.offset.reset", begin)
    if options.from_beginning and (reset != begin or options.offset is not None):
        other = f"auto.offset.reset={reset}" if reset != begin else "--offset"
        parser.error(f"Can't simultaneously specify --from-beginning and '{other}', please remove one option")
    # In a given partition Kafka seeks: the consumer's reset does not count.
    start = (options.offset or begin) if has_partition else reset
    options.command_property, options.command_config = list(settings.items()), None
    if not has_partition and options.offset is not None:
        parser.error("The partition is required when offset is specified.")
    if options.group is not None and has_partition:
        parser.error("Options group and partition cannot be specified together.")
    topic = TopicPartitions(options.topic, (options.partition,) if has_partition else None)
    options.topic, options.exit_at_end, options.format = [topic], False, "text"
    render = _renderer(options)
    printed = 0

    def counted(record: Received) -> bytes:
        nonlocal printed
        printed += 1
        return render(record)

    # The exit unwinds `read`, so that it commits and leaves the group.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))
    try:
        if _exists(options):
            read(options, Range(_position(start, parser)), counted)
    finally:
        print(f"Processed a total of {printed} messages", file=sys.stderr)
    return 0


def _position(text: str, parser: Parser) -> Position:
    if text in {"earliest", "latest"}:
        return Position("beginning" if text == "earliest" else "end")
    if not (text.isascii() and text.isdigit()):
        parser.error(f"the offset {text} is not a number, 'earliest' or 'latest'")
    return Position("offset", int(text))


def _exists(options: argparse.Namespace) -> bool:
    """Wait for the topic, which the broker may create, at most --timeout-ms; False if it does not appear."""
    with admin_client(options) as client:
        end_ms = None if options.timeout_ms is None else client.env.now_ms() + options.timeout_ms
        while True:
            (topic,) = client.metadata([options.topic[0].topic], creates=True).topics
            if not topic.error_code:
                return True
            if topic.error_code not in {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE}:
                raise KafkaError(ErrorCode(topic.error_code), options.topic[0].topic)
            if end_ms is not None and client.env.now_ms() >= end_ms:
                return False
            client.wait(LOOK_MS)


def _renderer(options: argparse.Namespace) -> Callable[[Received], bytes]:
    """The lines of Kafka's DefaultMessageFormatter."""
    found = dict(options.properties)
    decode: dict[str, Callable[[bytes], bytes]] = {}
    for what in ("key", "value"):
        name = found.pop(f"{what}.deserializer", None) or getattr(options, f"{what}_deserializer")
        if name in _DECODERS:
            decode[what] = lambda data, text=_DECODERS[name]: text(data).encode()  # type: ignore[misc]
        elif name in (None, *_PLAIN_DECODERS):
            decode[what] = bytes
        else:
            raise CommandFailed(f"the deserializer {name} is not supported; kbroker runs no Java classes")
    shows = {
        name: _flag(found.pop(f"print.{name}", None), default=name == "value")
        for name in ("timestamp", "partition", "offset", "headers", "key", "value")
    }
    between = found.pop("key.separator", "\t").encode()
    after = found.pop("line.separator", "\n").encode()
    comma = found.pop("headers.separator", ",").encode()
    null = found.pop("null.literal", "null").encode()
    if found:
        raise CommandFailed(f"the property {min(found)} is not supported")

    def part(name: str, record: Any) -> bytes:
        if name == "timestamp":
            kind = _TIMESTAMP_TYPES.get(record.timestamp_type)
            return f"{kind}:{record.timestamp}".encode() if kind else b"NO_TIMESTAMP"
        if name in {"partition", "offset"}:
            return f"{name.capitalize()}:{getattr(record, name)}".encode()
        if name == "headers":
            shown = (key.encode() + b":" + (null if value is None else value) for key, value in record.headers)
            return comma.join(shown) or b"NO_HEADERS"
        data = getattr(record, name)
        return null if data is None else decode[name](data)

    return lambda record: between.join(part(name, record) for name, is_shown in shows.items() if is_shown) + after

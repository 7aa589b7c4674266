"""Code shared by the commands that are clients of a broker: connection flags, client settings, admin client.

The client is kafka-python, so these commands work with every Kafka-compatible broker. `--command-config` reads a
properties file as Kafka's tools do. Java's setting names are translated if kafka-python has the same setting;
kafka-python's own names are also accepted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kbroker.cli import CommandFailed
from kbroker.cli._say import say

if TYPE_CHECKING:
    from kafka.admin import KafkaAdminClient

DEFAULT_BOOTSTRAP_SERVER: Final = "localhost:9092"
BOOTSTRAP_TIMEOUT_MS: Final = 10_000
RETRY_MS: Final = 100


def add_connection_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags that name the brokers and the client's settings."""
    parser.add_argument(
        "-b", "--bootstrap-server", "--bootstrap-servers", action="append", dest="bootstrap_servers",
        metavar="HOST:PORT", help=f"comma-separated brokers to connect to first (default {DEFAULT_BOOTSTRAP_SERVER})",
    )  # fmt: skip
    parser.add_argument(
        "--command-config", type=Path, metavar="FILE", help="client settings in Kafka's properties format"
    )


def add_client_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of a producer or consumer, which has further settings."""
    add_connection_flags(parser)
    parser.add_argument(
        "--command-property", action="append", type=_property, metavar="KEY=VALUE",
        help="a client setting; overrides the file; repeatable",
    )  # fmt: skip


def _property(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form key=value")
    return key.strip(), value.strip()


def quiet_client() -> None:
    """Suppress the client's log. Call this before importing the client.

    The log has a line for each connection attempt; the user needs only the final error.
    """
    import logging  # noqa: PLC0415  (--help must import neither this nor the client)

    logging.getLogger("kafka").addHandler(logging.NullHandler())
    logging.getLogger("kafka").propagate = False


@contextmanager
def client_errors(settings: Mapping[str, Any]) -> Iterator[None]:
    """Convert the client's errors to CommandFailed."""
    from kafka.errors import KafkaError, KafkaTimeoutError  # noqa: PLC0415

    try:
        yield
    except KafkaTimeoutError as error:
        said = explain(error)
        if "bootstrap" in said.lower():
            servers = ",".join(settings["bootstrap_servers"])
            said = f"no broker answers at {servers} within {settings['bootstrap_timeout_ms']} ms"
        raise CommandFailed(said) from error
    except KafkaError as error:
        raise CommandFailed(explain(error)) from error


@contextmanager
def admin_client(options: argparse.Namespace) -> Iterator[KafkaAdminClient]:
    """A connected admin client. Raises CommandFailed if no broker answers, and instead of the client's errors."""
    settings = client_settings(options)
    quiet_client()
    from kafka.admin import KafkaAdminClient  # noqa: PLC0415

    with client_errors(settings):
        try:
            client = KafkaAdminClient(**settings)
        except (OSError, ValueError) as error:
            raise CommandFailed(f"cannot connect to {','.join(settings['bootstrap_servers'])}: {error}") from error
        try:
            yield client
        finally:
            client.close()


def client_settings(options: argparse.Namespace, *, known: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The client's settings from flags and properties file. Raises CommandFailed for an unusable file.

    `known` has the defaults of the client's settings beyond those of every connection.
    """
    settings: dict[str, Any] = {"bootstrap_timeout_ms": BOOTSTRAP_TIMEOUT_MS}
    properties: dict[str, str] = {}
    if options.command_config is not None:
        properties |= read_properties(options.command_config)
    properties |= dict(getattr(options, "command_property", None) or [])
    settings |= translate(properties, known=known or {})
    words = options.bootstrap_servers or [properties.get("bootstrap.servers") or DEFAULT_BOOTSTRAP_SERVER]
    servers = [server.strip() for word in words for server in word.split(",") if server.strip()]
    if not servers:
        raise CommandFailed("--bootstrap-server is empty")
    for server in servers:
        parse_server(server)
    return settings | {"bootstrap_servers": servers}


def parse_server(server: str) -> tuple[str, int]:
    """Host and port of `host:port`, `host`, `[address]:port` or an IPv6 address. Errors: CommandFailed."""
    from kbroker.config import client_properties  # noqa: PLC0415  (--help must not import this)

    try:
        return client_properties.parse_server(server)
    except ValueError as error:
        raise CommandFailed(str(error)) from error


def read_properties(path: Path) -> dict[str, str]:
    """The settings in a file. Raises CommandFailed if the file cannot be read."""
    from kbroker.config.properties import parse_properties  # noqa: PLC0415
    from kbroker.config.values import ConfigError  # noqa: PLC0415

    try:
        return parse_properties(path.read_bytes(), file_name=str(path))
    except (OSError, ConfigError) as error:
        raise CommandFailed(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


def translate(properties: Mapping[str, str], *, known: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Translate a Java client's properties into kafka-python settings; warn on stderr about ignored ones.

    Raises CommandFailed. `known` is as in `client_properties.translate`.
    """
    from kbroker.config import client_properties  # noqa: PLC0415

    try:
        settings, ignored = client_properties.translate(properties, known=known)
    except ValueError as error:
        raise CommandFailed(str(error)) from error
    for key in ignored:
        say(f"kbroker: ignoring the unknown client setting {key}", file=sys.stderr)
    return settings


def explain(error: Exception) -> str:
    """The message of a client's error: the broker's message if it sent one."""
    said = ", ".join(str(argument) for argument in error.args if argument).strip()
    described = str(getattr(error, "description", None) or type(error).__name__)
    # Some of the client's errors end with a colon if the broker sent no message.
    return f"{said} {described}" if said.endswith(":") else said or described


def explain_code(code: int, message: str | None) -> str:
    """The message of an error response: the broker's message, or Kafka's description of the code."""
    from kafka.errors import for_code  # noqa: PLC0415

    return message or str(for_code(code).description or for_code(code).message or f"error {code}")


def ask(client: KafkaAdminClient, request: Any, *, node_id: int | str | None = None) -> Any:
    """Send a raw request of kafka-python to a node, or to any. The client's own methods drop parts of responses."""
    return client._manager.run(client._manager.send, request, node_id)


def coordinator_of(client: KafkaAdminClient, group: str, *, timeout_ms: int) -> int:
    """The node id of a group's coordinator.

    The first such request makes the broker create __consumer_offsets, so the answer may take a moment.
    """
    from threading import Event  # noqa: PLC0415

    from kafka.errors import KafkaError  # noqa: PLC0415

    for _ in range(max(1, timeout_ms // RETRY_MS)):
        try:
            found: int = client._manager.run(client._find_coordinator_id, group)
            return found
        except KafkaError as error:
            if not error.retriable:
                raise
            reason = explain(error)
            Event().wait(RETRY_MS / 1000)
    raise CommandFailed(f"no coordinator of group {group!r} was found within {timeout_ms} ms: {reason}")

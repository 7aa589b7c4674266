"""Code shared by the commands that are clients of a broker: connection flags, client settings, errors.

`kbroker.client` works with every Kafka-compatible broker. `--command-config` reads a properties file as Kafka's tools
do.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kbroker.cli import CommandFailed
from kbroker.cli._positions import pair
from kbroker.cli._say import note

if TYPE_CHECKING:
    from kbroker.client.cluster import Cluster
    from wire.errors import KafkaError

DEFAULT_BOOTSTRAP_SERVER: Final = "localhost:9092"
BOOTSTRAP_TIMEOUT_MS: Final = 10_000
broker_wait_ms: int | None = None
"""How long a command without default.api.timeout.ms waits until a broker answers; None: it fails at once."""
_LOCAL: Final = re.compile(r"at (localhost|127\.|\[::1\])")


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
        "--command-property", action="append", type=pair, metavar="KEY=VALUE",
        help="a client setting; overrides the file; repeatable",
    )  # fmt: skip


@contextmanager
def client_errors() -> Iterator[None]:
    """Convert the client's errors to CommandFailed."""
    from wire.errors import ErrorCode, KafkaError  # noqa: PLC0415  (--help must not import the client)

    try:
        yield
    except KafkaError as error:
        is_refused = "Connection refused" in error.message and error.code == ErrorCode.BROKER_NOT_AVAILABLE
        hint = "; `kbroker serve` starts a broker" if is_refused and _LOCAL.search(error.message) else ""
        raise CommandFailed(explain(error) + hint) from error


@contextmanager
def connected(settings: Mapping[str, Any]) -> Iterator[Cluster]:
    """A connected client. Raises CommandFailed if no broker answers, and instead of the client's errors."""
    from kbroker.client.cluster import Cluster  # noqa: PLC0415

    with client_errors():
        try:
            cluster = Cluster(settings)
        except OSError as error:
            raise CommandFailed(f"cannot connect to {','.join(settings['bootstrap_servers'])}: {error}") from error
        with cluster:
            yield cluster


@contextmanager
def admin_client(options: argparse.Namespace) -> Iterator[Cluster]:
    """A connected client with the settings of the flags."""
    with connected(client_settings(options)) as cluster:
        yield cluster


def client_settings(options: argparse.Namespace, *, known: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The client's settings from flags and properties file; warns on stderr about ignored ones.

    `known` has the defaults of the client's settings beyond those of every connection. Raises CommandFailed for
    unusable settings.
    """
    from kbroker.config import client_properties  # noqa: PLC0415  (--help must not import this)

    properties: dict[str, str] = {}
    if options.command_config is not None:
        properties |= read_properties(options.command_config)
    properties |= dict(getattr(options, "command_property", None) or [])
    words = options.bootstrap_servers or [properties.get("bootstrap.servers") or DEFAULT_BOOTSTRAP_SERVER]
    servers = [server.strip() for word in words for server in word.split(",") if server.strip()]
    if not servers:
        raise CommandFailed("--bootstrap-server is empty")
    try:
        settings, ignored = client_properties.translate(properties, known=known)
        for server in servers:
            client_properties.parse_server(server)
    except ValueError as error:
        raise CommandFailed(str(error)) from error
    for key in ignored:
        note(f"kbroker: ignoring the client setting {key}, which has no effect here")
    # A command waits until a broker answers only with default.api.timeout.ms, or if it stands for a tool of Kafka's.
    waits = broker_wait_ms is not None or "bootstrap_timeout_ms" in settings
    bootstrap_ms = BOOTSTRAP_TIMEOUT_MS if broker_wait_ms is None else broker_wait_ms
    found = {"bootstrap_timeout_ms": bootstrap_ms, **settings, "bootstrap_servers": servers}
    return found | {"waits_for_broker": waits}


def read_properties(path: Path) -> dict[str, str]:
    """The settings in a file. Raises CommandFailed if the file cannot be read."""
    from kbroker.config.properties import parse_properties  # noqa: PLC0415
    from kbroker.config.values import ConfigError  # noqa: PLC0415

    try:
        return parse_properties(path.read_bytes(), file_name=str(path))
    except (OSError, ConfigError) as error:
        raise CommandFailed(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


def confirm(question: str, names: Sequence[str], *, is_agreed: bool) -> None:
    """List what a pattern has matched, and ask on a terminal. Raises CommandFailed unless the answer is yes.

    Without a terminal, only `--yes` (is_agreed) is an agreement.
    """
    if is_agreed or not names:
        return
    for name in names:
        note(f"  {name}")
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise CommandFailed(f"{question} Nothing was deleted, because there is no terminal to ask; use --yes to agree")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise CommandFailed("nothing was deleted")


def explain(error: KafkaError) -> str:
    """The message of a client's error: the broker's message, or Kafka's description of the code."""
    return explain_code(error.code, error.message)


def explain_code(code: int, message: str | None = None) -> str:
    """The message of an error response: the broker's message, or Kafka's description of the code."""
    from kbroker.cli._error_texts import DESCRIPTIONS  # noqa: PLC0415
    from wire.errors import ErrorCode  # noqa: PLC0415

    if message or code in DESCRIPTIONS:
        return message or DESCRIPTIONS[code]
    return ErrorCode(code).name if code in set(ErrorCode) else f"error {code}"

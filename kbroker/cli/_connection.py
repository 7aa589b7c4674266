"""A direct connection to one broker, for commands that must start faster than kafka-python can be imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.cli import CommandFailed
from kbroker.cli._admin import parse_server
from kbroker.client.blocking import Connection
from wire.client import UnsupportedApi

if TYPE_CHECKING:
    import ssl


def connect(server: str, settings: dict[str, Any]) -> Connection:
    """Connect and negotiate versions. `settings` are a client's, see `_admin.client_settings`.

    Errors  OSError, wire.errors.Malformed, CommandFailed
    """
    host, port = parse_server(server)
    tls = _tls_context(settings) if settings.get("security_protocol", "PLAINTEXT") == "SSL" else None
    connection = Connection(host, port, client_id="kbroker", tls=tls)
    try:
        connection.negotiate()
    except UnsupportedApi as error:
        connection.close()
        raise CommandFailed(f"{server}: {error}") from error
    except BaseException:
        connection.close()
        raise
    return connection


def _tls_context(settings: dict[str, Any]) -> ssl.SSLContext:
    import ssl  # noqa: PLC0415  (most connections are plain text)

    context = ssl.create_default_context(cafile=settings.get("ssl_cafile"))
    if not settings.get("ssl_check_hostname", True):
        context.check_hostname = False
    if "ssl_certfile" in settings:
        context.load_cert_chain(settings["ssl_certfile"], settings.get("ssl_keyfile"), settings.get("ssl_password"))
    return context

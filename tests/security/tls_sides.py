"""Both sides of TLS over streams in memory, and their certificates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio
from cryptography.x509.oid import NameOID

from kbroker.config.tls import TlsSettings
from kbroker.config.values import Secret
from kbroker.metadata.principal import Principal
from kbroker.runtime.env import RealEnv
from kbroker.security.listener import HandshakeFailed
from kbroker.security.server_tls import ServerTls
from kbroker.security.tls_stream import TlsStream
from kbroker.testing.net import MemoryStream, stream_pair
from tests.security.certificates import Authority, Signed

AUTHORITY = Authority()
SERVER = AUTHORITY.sign()
OTHER = Authority("other")
USER = AUTHORITY.sign((NameOID.COUNTRY_NAME, "DE"), (NameOID.COMMON_NAME, "duke"), names=())


def settings(own: Signed | None = SERVER, *, trusts: Signed | None = AUTHORITY, **more: Any) -> TlsSettings:
    """Settings with certificates in PEM, without files."""
    given: dict[str, Any] = {"ssl_keystore_type": "PEM", "ssl_truststore_type": "PEM"}
    if own is not None:
        given |= {
            "ssl_keystore_key": Secret(own.key_pem()),
            "ssl_keystore_certificate_chain": Secret(own.chain),
        }
    if trusts is not None:
        given["ssl_truststore_certificates"] = Secret(trusts.chain)
    return TlsSettings(**{**given, **more})


def side(given: TlsSettings, *, accepts: bool) -> ServerTls:
    env = RealEnv()
    return ServerTls(env, "SSL", given, env.threads(2), accepts=accepts)


async def connected(
    server: TlsSettings, client: TlsSettings, *, host: str = "localhost"
) -> tuple[TlsStream, TlsStream, Principal]:
    """Both sides after a handshake. Errors: those of the server's side, or else of the client's."""
    near, far = stream_pair()
    found: list[Any] = []
    errors: list[HandshakeFailed] = []
    accepting, connecting = side(server, accepts=True), side(client, accepts=False)

    async def keep(result: Callable[[], Any], stream: MemoryStream) -> None:
        try:
            found.append(await result())
        except HandshakeFailed as error:
            errors.append(error)
            stream.close()

    async def accept() -> tuple[TlsStream, Principal]:
        secured = await accepting.accept(far)
        return secured, accepting.principal(secured)

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep, lambda: connecting.connect(near, host), near)
            await keep(accept, far)
    if errors:
        raise ExceptionGroup("handshake", errors) if len(errors) > 1 else errors[0]
    accepted = next(one for one in found if isinstance(one, tuple))
    return accepted[0], next(one for one in found if one is not accepted), accepted[1]

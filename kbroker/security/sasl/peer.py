"""The login of this node at the listener of another node: a broker or a controller.

User and password are those in the listener's sasl.jaas.config, as in Kafka. For OAUTHBEARER a file has the token. It
is read at each login, so a new token takes effect when the file is replaced. If a session expires, the other node
closes the connection, and this node connects again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from kbroker.client.security import exchange
from kbroker.client.streaming import Connection, ConnectionClosed
from kbroker.config import Settings
from kbroker.config.client_properties import token_file
from kbroker.config.sasl import MECHANISMS, OAUTHBEARER, SaslSettings
from kbroker.config.values import ConfigError
from kbroker.runtime.net_ports import Env, Stream
from kbroker.security.sasl.server import login_module
from wire.errors import KafkaError, Malformed, code_of
from wire.messages.sasl_authenticate import SaslAuthenticateRequest
from wire.messages.sasl_handshake import SaslHandshakeRequest

_VERSION: Final = 1
_MAX_RESPONSE_BYTES: Final = 512 * 1024


class PeerLogin(NamedTuple):
    """A mechanism and the credentials for it, with the names of `kbroker.client`; or why this node cannot log in."""

    mechanism: str
    credentials: Mapping[str, str]
    fault: str = ""

    def __repr__(self) -> str:
        return f"PeerLogin({self.mechanism})"


def peer_login(settings: Settings, listener: str, *, is_controller: bool) -> PeerLogin:
    """The login at a listener of other nodes. Errors: ConfigError."""
    sasl = settings.sasl
    kind = "controller" if is_controller else "inter.broker"
    mechanism = sasl.sasl_mechanism_controller_protocol if is_controller else sasl.sasl_mechanism_inter_broker_protocol
    if mechanism not in MECHANISMS:
        raise ConfigError(
            f"sasl.mechanism.{kind}.protocol={mechanism} is not supported; the listener {listener} needs one of "
            f"{', '.join(MECHANISMS)}"
        )
    options = login_module(settings, listener, mechanism).options
    key = f"listener.name.{listener.lower()}.{mechanism.lower()}.sasl.jaas.config"
    if mechanism == OAUTHBEARER:
        own = settings.for_listener(SaslSettings, listener, mechanism=mechanism)
        if not (path := options.get("tokenFile") or token_file(own.sasl_oauthbearer_token_endpoint_url or "file:")):
            raise ConfigError(
                f"{key}: this node logs in on {listener} and needs a tokenFile there, or "
                "sasl.oauthbearer.token.endpoint.url=file:PATH"
            )
        return PeerLogin(mechanism, {"sasl_oauthbearer_token_file": path})
    if not options.get("username") or not options.get("password"):
        raise ConfigError(f"{key}: this node logs in on {listener} and needs a username and a password there")
    user, password = options["username"], options["password"]
    return PeerLogin(mechanism, {"sasl_plain_username": user, "sasl_plain_password": password})


async def log_in(env: Env, stream: Stream, login: PeerLogin, *, host: str) -> None:
    """Log in over a new connection; the caller limits the time. Errors: ConnectionError, also if it is refused."""
    if login.fault:
        raise ConnectionError(login.fault)
    connection = Connection(stream, client_id="kbroker", max_response_bytes=_MAX_RESPONSE_BYTES)
    try:
        nonce = env.new_uuid().hex
        # Steps of an exchange read a file or hash a password.
        tokens: Any = exchange(login.mechanism, login.credentials, host=host, nonce=nonce)
        chosen = await connection.ask(SaslHandshakeRequest(mechanism=login.mechanism), version=_VERSION)
        if chosen.error_code:
            offered = ", ".join(chosen.mechanisms)
            raise ConnectionError(f"{host} offers SASL {offered or 'not at all'}, not {login.mechanism}")
        token: bytes | None = await env.run_blocking(next, tokens)
        while token is not None:
            answer = await connection.ask(SaslAuthenticateRequest(auth_bytes=token), version=_VERSION)
            if answer.error_code:
                raise ConnectionError(
                    f"{host} refuses the login: {answer.error_message or code_of(answer.error_code).name}"
                )
            token = await env.run_blocking(_next, tokens, bytes(answer.auth_bytes))
    except (KafkaError, Malformed, ConnectionClosed) as error:
        why = str(error) or "it closed the connection; does its listener have SASL?"
        raise ConnectionError(f"the login at {host} failed: {why}") from error


def _next(tokens: Any, answer: bytes) -> bytes | None:
    try:
        token: bytes = tokens.send(answer)
    except StopIteration:
        return None
    return token

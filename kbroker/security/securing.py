"""The security of a node: that of each of its listeners, and that of its connections to other nodes.

Certificates are renewed when the dynamic settings of the broker change, on SIGHUP, and when a look at the files every
kbroker.tls.reload.interval.ms finds a change. A node without TLS does not import `ssl`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import trio

from kbroker.config import Settings
from kbroker.config.catalogue import LISTENER_PREFIX
from kbroker.config.listeners import Listener, is_loopback
from kbroker.config.observability import PAGES
from kbroker.config.sasl import OAUTHBEARER, SaslSettings
from kbroker.config.tls import TlsSettings
from kbroker.config.values import ConfigError
from kbroker.runtime.event_log import get_logger
from kbroker.runtime.net_ports import Env
from kbroker.security.connecting import PeerSecurity
from kbroker.security.listener import Acceptor, ListenerSecurity
from kbroker.security.sasl.scram import CredentialStore

if TYPE_CHECKING:
    from kbroker.security.sasl.peer import PeerLogin
    from kbroker.security.sasl.server import SaslServer
    from kbroker.security.server_tls import ServerTls

logger = get_logger(__name__)


def tls_of(settings: Settings, name: str) -> TlsSettings:
    """The TLS settings of a listener. As in Kafka, one with SASL asks for clients' certificates only if
    ssl.client.auth has the listener's prefix (KIP-684).
    """
    tls = settings.for_listener(TlsSettings, name)
    prefixed = f"{LISTENER_PREFIX}{name.lower()}.ssl.client.auth"
    if settings.listeners.protocols.get(name) == "SASL_SSL" and settings.layers.text(prefixed) is None:
        return replace(tls, ssl_client_auth="none")
    return tls


def pages_have_tls(settings: Settings) -> bool:
    """Whether a node with these settings serves HTTP pages, and over TLS."""
    pages = settings.observability
    return pages.kbroker_http_listener is not None and pages.kbroker_http_security_protocol == "SSL"


class NodeSecurity:
    """See the module docstring. The constructor reads files: call it in a thread. Errors: ConfigError.

    Shape   credentials has the users of SCRAM, when the node has loaded its metadata
            inter_broker and controllers are what the other nodes' listeners of these kinds expect, None without TLS
            and SASL
    """

    def __init__(self, env: Env, settings: Settings) -> None:
        self._env = env
        self._settings = settings
        self._wanted = trio.Event()
        self._tls: dict[str, ServerTls] = {}
        self._handshakes = env.threads(settings.limits.kbroker_max_tls_handshakes)  # of all listeners
        listeners = settings.listeners
        own = [one.name for one in (*listeners.bound, *listeners.controllers)]
        peers = [name for name in (listeners.inter_broker_name, listeners.controller_name) if name is not None]
        for name in dict.fromkeys([*own, *peers]):
            if listeners.protocols[name].endswith("SSL"):
                self._tls[name] = self._server_tls(name, accepts=name in own)
        if pages_have_tls(settings):
            self._tls[PAGES] = self._server_tls(PAGES, accepts=True)
        self.credentials = CredentialStore(env.new_uuid().bytes)
        self._sasl = {
            one.name: self._sasl_server(one, settings)
            for one in (*listeners.bound, *listeners.controllers)
            if listeners.protocols[one.name].startswith("SASL_")
        }
        self.inter_broker = self._peer(listeners.inter_broker_name, is_controller=False)
        self.controllers = self._peer(listeners.controller_name, is_controller=True)

    def of(self, name: str) -> ListenerSecurity:
        """The security of one of this node's listeners."""
        return ListenerSecurity(self._settings.listeners.protocols[name], self._tls.get(name), self._sasl.get(name))

    @property
    def pages(self) -> Acceptor | None:
        """The TLS of the HTTP pages; None without it."""
        return self._tls.get(PAGES)

    @property
    def has_tls(self) -> bool:
        """Whether anything here has certificates."""
        return bool(self._tls)

    @property
    def is_dynamic(self) -> bool:
        """Whether dynamic settings can change something here."""
        return bool(self._tls or self._sasl)

    def request_renewal(self, settings: Settings | None = None) -> None:
        """Make `run` look at the files and at new settings, if any."""
        self._settings = settings or self._settings
        self._wanted.set()
        for name, server in self._sasl.items():
            try:
                server.apply(self._settings)
            except ConfigError as error:
                logger.warning("keeping the previous settings of SASL", listener=name, why=error)
        if self._sasl:
            self.inter_broker = self._peer(self._settings.listeners.inter_broker_name, is_controller=False)

    def check(self, settings: Settings) -> None:
        """Refuse settings whose certificates or logins cannot be used; reads files. Errors: ConfigError."""
        for listener in (*settings.listeners.bound, *settings.listeners.controllers):
            if listener.name in self._sasl:
                self._sasl[listener.name].check(settings)
                if _shows_passwords(listener, settings) and not _shows_passwords(listener, self._settings):
                    _warn_of_passwords(listener)
        for name, tls in self._tls.items():
            wanted = tls_of(settings, name)
            if wanted != tls_of(self._settings, name):
                try:
                    tls.check(wanted)
                except (ConfigError, OSError) as error:
                    raise ConfigError(f"listener {name}: {error}") from error

    async def run(self) -> None:
        """Renew certificates and the keys of OAUTHBEARER, forever; ends at once if there is nothing to renew."""
        async with trio.open_nursery() as nursery:
            for server in self._sasl.values():
                nursery.start_soon(server.run)
            await self._renew_certificates()

    async def _renew_certificates(self) -> None:
        interval_ms = self._settings.limits.kbroker_tls_reload_interval_ms
        while self._tls:
            with trio.move_on_after(interval_ms / 1000):
                await self._wanted.wait()
            self._wanted = trio.Event()
            for name, tls in self._tls.items():
                await tls.renew(tls_of(self._settings, name))

    def _server_tls(self, name: str, *, accepts: bool) -> ServerTls:
        from kbroker.security.server_tls import ServerTls  # noqa: PLC0415  (imports ssl)

        given = tls_of(self._settings, name)
        if accepts and given.ssl_client_auth != "none" and not given.has_trust_store:
            logger.warning(
                "every public authority can admit clients, because the listener has no ssl.truststore.location",
                listener=name,
            )
        try:
            return ServerTls(self._env, name, given, self._handshakes, accepts=accepts)
        except (ConfigError, OSError) as error:
            raise ConfigError(f"listener {name}: {error}") from error

    def _sasl_server(self, listener: Listener, settings: Settings) -> SaslServer:
        from kbroker.security.sasl.server import SaslServer  # noqa: PLC0415  (not needed without SASL)

        if _shows_passwords(listener, settings):
            _warn_of_passwords(listener)
        return SaslServer(self._env, settings, listener.name, self.credentials)

    def _peer(self, name: str | None, *, is_controller: bool) -> PeerSecurity | None:
        if name is None or (protocol := self._settings.listeners.protocols[name]) == "PLAINTEXT":
            return None
        login = self._peer_login(name, is_controller=is_controller) if protocol.startswith("SASL_") else None
        return PeerSecurity(protocol, self._tls.get(name), login)

    def _peer_login(self, name: str, *, is_controller: bool) -> PeerLogin:
        from kbroker.security.sasl.peer import PeerLogin, peer_login  # noqa: PLC0415

        try:
            return peer_login(self._settings, name, is_controller=is_controller)
        except ConfigError as error:
            if is_controller and not self._settings.server.is_controller:
                raise
            # A single node never connects to others. As in Kafka, its login may lack a user, but not a token.
            if not is_controller and self._settings.sasl.sasl_mechanism_inter_broker_protocol == OAUTHBEARER:
                raise
            return PeerLogin("", {}, str(error))


def _shows_passwords(listener: Listener, settings: Settings) -> bool:
    """Whether passwords would cross the network as they are. Errors: ConfigError if that is not allowed."""
    given = settings.for_listener(SaslSettings, listener.name)
    if "PLAIN" not in given.sasl_enabled_mechanisms or settings.listeners.protocols[listener.name] != "SASL_PLAINTEXT":
        return False
    if not given.kbroker_sasl_plain_without_tls:
        raise ConfigError(
            f"listeners: {listener.name} would send the passwords of PLAIN over the network as they are; use SASL_SSL "
            "or SCRAM, or allow it with kbroker.sasl.plain.without.tls=true"
        )
    return listener.host is None or not (listener.host == "localhost" or is_loopback(listener.host))


def _warn_of_passwords(listener: Listener) -> None:
    logger.warning(
        "PASSWORDS CROSS THE NETWORK IN CLEAR TEXT: the listener offers PLAIN without TLS", listener=listener.name
    )

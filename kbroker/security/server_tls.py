"""The TLS of one listener, for the connections that it accepts and for those that this node makes to its peers.

The certificates in force may change at any time: `renew` replaces the contexts, and running connections keep theirs.
Handshakes run in a few threads, because a signature with an RSA key takes a millisecond and more.

Source  SslFactory of Apache Kafka 4.3.1 for the checks of a new certificate against the previous one
"""

from __future__ import annotations

import ssl
from typing import Final

from kbroker.config.principal_rules import PrincipalRules
from kbroker.config.tls import TlsSettings
from kbroker.config.values import ConfigError
from kbroker.metadata.principal import ANONYMOUS, Principal
from kbroker.runtime.event_log import get_logger
from kbroker.runtime.net_ports import Env, Stream, Threads
from kbroker.security.certificates import subject
from kbroker.security.contexts import Contexts, load
from kbroker.security.listener import HandshakeFailed
from kbroker.security.tls_stream import TlsStream

USER: Final = "User"
_Signature = tuple[tuple[int, int], ...]

logger = get_logger(__name__)


class ServerTls:
    """See the module docstring. Errors: ConfigError, OSError from the constructor, which reads files."""

    def __init__(self, env: Env, name: str, settings: TlsSettings, threads: Threads, *, accepts: bool) -> None:
        self.name = name
        self._env = env
        self._threads = threads
        self._accepts = accepts
        self._looked_at = settings, self._look(settings)
        self._contexts = self._load(settings)
        self._rules = PrincipalRules(settings.ssl_principal_mapping_rules)

    async def accept(self, stream: Stream) -> TlsStream:
        """See `kbroker.security.listener.Acceptor`."""
        contexts = self._contexts
        assert contexts.server is not None
        secured = TlsStream(stream, contexts.server, server_side=True)
        await secured.handshake(self._threads.run_blocking)
        if (fault := contexts.demand_allowed(secured.tls)) is not None:
            raise HandshakeFailed(fault)
        # OpenSSL checks no certificate in a resumed session, and each resumption makes a ticket for the next one.
        certificate = secured.tls.getpeercert() if secured.tls.session_reused else None
        if certificate and ssl.cert_time_to_seconds(str(certificate["notAfter"])) * 1000 < self._env.timestamp_ms():
            raise HandshakeFailed("certificate: certificate has expired since the session began")
        return secured

    def principal(self, stream: Stream) -> Principal:
        """See `kbroker.security.listener.Acceptor`."""
        assert isinstance(stream, TlsStream)
        certificate = stream.tls.getpeercert(binary_form=True)
        if certificate is None:
            return ANONYMOUS
        try:
            found = subject(certificate)
        except ValueError as error:
            raise HandshakeFailed(f"the client's certificate cannot be read: {error}") from error
        name = self._rules.name(found)
        if name is None:
            raise HandshakeFailed(f"no rule of ssl.principal.mapping.rules applies to {found}")
        return Principal(USER, name)

    async def connect(self, stream: Stream, host: str) -> TlsStream:
        """Do the handshake with a listener of this kind of another node. Errors: HandshakeFailed."""
        contexts = self._contexts
        secured = TlsStream(stream, contexts.client, server_side=False, server_hostname=host)
        await secured.handshake()
        if (fault := contexts.demand_allowed(secured.tls)) is not None:
            raise HandshakeFailed(fault)
        return secured

    def check(self, settings: TlsSettings) -> Contexts:
        """Make contexts from new settings or changed files; blocking. Errors: ConfigError, OSError."""
        contexts, now = self._load(settings), self._contexts
        if not settings.ssl_allow_dn_changes and contexts.name.lower() != now.name.lower():
            raise ConfigError(
                f"Keystore DistinguishedName does not match: existing={now.name}, new={contexts.name}; "
                "ssl.allow.dn.changes=true allows it"
            )
        if not settings.ssl_allow_san_changes and not contexts.alternative_names >= now.alternative_names:
            raise ConfigError(
                "Keystore SubjectAltNames do not match: the new certificate lacks some of the previous one; "
                "ssl.allow.san.changes=true allows it"
            )
        return contexts

    async def renew(self, settings: TlsSettings) -> None:
        """Use new settings, or files that have changed, for connections that come from now on.

        If they cannot be used, log why and keep the previous ones.
        """
        try:
            found = settings, await self._env.run_blocking(self._look, settings)
            if found == self._looked_at:
                return
            # Look at unusable settings and files only once, so that they cause one line in the log.
            self._looked_at = found
            self._contexts = await self._env.run_blocking(self.check, settings)
        except (ConfigError, OSError) as error:
            logger.error("cannot reload certificates; keeping the previous ones", listener=self.name, error=error)
            return
        logger.info("reloaded certificates", listener=self.name, subject=self._contexts.name)

    def _load(self, settings: TlsSettings) -> Contexts:
        try:
            contexts = load(settings, self._env.disk)
        except ValueError as error:  # a form that OpenSSL reads and Python does not, or a password that is too long
            if isinstance(error, ConfigError | OSError):
                raise
            raise ConfigError(f"the key store or the trust store cannot be read: {error}") from error
        if self._accepts and contexts.server is None:
            raise ConfigError("TLS requires a certificate: set ssl.keystore.location or ssl.keystore.key")
        return contexts

    def _look(self, settings: TlsSettings) -> _Signature:
        """Size and time of the files; changes when a file does."""
        disk = self._env.disk
        found = []
        paths = settings.ssl_keystore_location, settings.ssl_truststore_location, settings.kbroker_ssl_crl_location
        for path in filter(None, paths):
            try:
                found.append((disk.size(path), disk.modified_ms(path)))
            except OSError:
                found.append((-1, -1))
        return tuple(found)

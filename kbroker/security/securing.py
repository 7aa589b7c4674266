"""The security of a node: that of each of its listeners, and that of its connections to other nodes.

Certificates are renewed when the dynamic settings of the broker change, on SIGHUP, and when a look at the files every
kbroker.tls.reload.interval.ms finds a change. A node without TLS does not import `ssl`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from kbroker.config import Settings
from kbroker.config.tls import TlsSettings
from kbroker.config.values import ConfigError
from kbroker.runtime.net_ports import Env
from kbroker.security.connecting import PeerSecurity
from kbroker.security.listener import ListenerSecurity

if TYPE_CHECKING:
    from kbroker.security.server_tls import ServerTls


class NodeSecurity:
    """See the module docstring. The constructor reads files: call it in a thread. Errors: ConfigError.

    Shape   inter_broker and controllers are what the other nodes' listeners of these kinds expect, None without TLS
            and SASL
    """

    def __init__(self, env: Env, settings: Settings) -> None:
        self._env = env
        self._settings = settings
        self._wanted = trio.Event()
        self._tls: dict[str, ServerTls] = {}
        listeners = settings.listeners
        own = [one.name for one in (*listeners.bound, *listeners.controllers)]
        peers = [name for name in (listeners.inter_broker_name, listeners.controller_name) if name is not None]
        for name in dict.fromkeys([*own, *peers]):
            if listeners.protocols[name].endswith("SSL"):
                self._tls[name] = self._server_tls(name, accepts=name in own)
        self.inter_broker = self._peer(listeners.inter_broker_name)
        self.controllers = self._peer(listeners.controller_name)

    def of(self, name: str) -> ListenerSecurity:
        """The security of one of this node's listeners."""
        return ListenerSecurity(self._settings.listeners.protocols[name], self._tls.get(name))

    @property
    def has_tls(self) -> bool:
        """Whether anything here has certificates."""
        return bool(self._tls)

    def request_renewal(self, settings: Settings | None = None) -> None:
        """Have `run` look at the files and at new settings, if there are some."""
        self._settings = settings or self._settings
        self._wanted.set()

    def check(self, settings: Settings) -> None:
        """Refuse settings whose certificates cannot be used; reads files. Errors: ConfigError."""
        for name, tls in self._tls.items():
            wanted = settings.for_listener(TlsSettings, name)
            if wanted != self._settings.for_listener(TlsSettings, name):
                try:
                    tls.check(wanted)
                except (ConfigError, OSError) as error:
                    raise ConfigError(f"listener {name}: {error}") from error

    async def run(self) -> None:
        """Renew certificates, forever; ends at once if there are none."""
        interval_ms = self._settings.limits.kbroker_tls_reload_interval_ms
        while self._tls:
            with trio.move_on_after(interval_ms / 1000):
                await self._wanted.wait()
            self._wanted = trio.Event()
            for name, tls in self._tls.items():
                await tls.renew(self._settings.for_listener(TlsSettings, name))

    def _server_tls(self, name: str, *, accepts: bool) -> ServerTls:
        from kbroker.security.server_tls import ServerTls  # noqa: PLC0415  (imports ssl)

        threads = self._env.threads(self._settings.limits.kbroker_max_tls_handshakes)
        try:
            return ServerTls(self._env, name, self._settings.for_listener(TlsSettings, name), threads, accepts=accepts)
        except (ConfigError, OSError) as error:
            raise ConfigError(f"listener {name}: {error}") from error

    def _peer(self, name: str | None) -> PeerSecurity | None:
        if name is None or name not in self._tls:
            return None
        return PeerSecurity(self._settings.listeners.protocols[name], self._tls[name])

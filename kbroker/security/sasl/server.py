"""The mechanisms of one listener: makes them from the settings, and runs the slow ones in threads.

Hashing and checks of signatures run in threads of their own, at most two for passwords and one for tokens, so that many
logins delay neither requests nor the disk. Another thread reads the keys of OAUTHBEARER.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote

import trio

from kbroker.config import Settings
from kbroker.config.jaas import LoginModule, parse_jaas
from kbroker.config.listeners import counted_address
from kbroker.config.sasl import SaslSettings
from kbroker.config.values import ConfigError
from kbroker.runtime.event_log import get_logger
from kbroker.runtime.limits import RateLimitedLog
from kbroker.runtime.net_ports import Env
from kbroker.security.sasl import AuthenticationFailed, Exchange, Step, UnknownKey
from kbroker.security.sasl.failures import FailedLogins
from kbroker.security.sasl.plain import PlainExchange, PlainUsers
from kbroker.security.sasl.scram import MECHANISMS as SCRAM
from kbroker.security.sasl.scram import CredentialStore, ScramExchange, ScramUsers

if TYPE_CHECKING:
    from kbroker.security.sasl.jwks import IssuerKeys

_HASHING_THREADS: Final = 2
_LOG_INTERVAL_MS: Final = 10_000
_MIN_PAUSE_MS: Final = 1_000  # before keys are read again without a login
_NONCE_BITS: Final = 128
_USER: Final = "user_"
_MODULES: Final = {
    "PLAIN": "PlainLoginModule",
    "OAUTHBEARER": "OAuthBearerLoginModule",
    **dict.fromkeys(SCRAM, "ScramLoginModule"),
}

logger = get_logger(__name__)


class _Lane:
    """Threads for slow steps of logins, and the turns of the logins that wait for one."""

    def __init__(self, env: Env, max_threads: int) -> None:
        self.threads = env.threads(max_threads)
        self.turns = trio.Semaphore(max_threads)


class _Mechanisms(NamedTuple):
    """The mechanisms of a listener, made from its settings."""

    given: SaslSettings
    begin: dict[str, Callable[[], Exchange]]
    max_reauth_ms: dict[str, int]
    keys: IssuerKeys | None
    is_unsecured: bool


class SaslServer:
    """Authenticates the clients of one listener.

    Shape  mechanisms are those that the listener offers; max_receive_bytes bounds a request before authentication
    """

    def __init__(self, env: Env, settings: Settings, listener: str, store: CredentialStore) -> None:
        """Errors: ConfigError."""
        self.env = env
        self.listener = listener
        self.failures = FailedLogins()
        self._users = ScramUsers(store)
        self._hashing = _Lane(env, _HASHING_THREADS)
        self._tokens = _Lane(env, 1)
        self._reading = env.threads(1)
        self._keys_changed = trio.Event()
        self._log_limit = RateLimitedLog(interval_ms=_LOG_INTERVAL_MS)
        self._keys: IssuerKeys | None = None
        self._is_unsecured = False
        self.apply(settings)

    def apply(self, settings: Settings) -> None:
        """Use these settings for logins that begin from now on. Errors: ConfigError; nothing has changed then."""
        made = self._made(settings)
        given = made.given
        self.mechanisms = given.sasl_enabled_mechanisms
        self.max_receive_bytes = given.sasl_server_max_receive_size
        self.failures.delay_ms = given.connection_failed_authentication_delay_ms
        self.failures.max_delay_ms = given.kbroker_failed_authentication_max_delay_ms
        self._begin, self._max_reauth_ms, self._keys = made.begin, made.max_reauth_ms, made.keys
        self._keys_changed.set()
        if made.is_unsecured and not self._is_unsecured:
            logger.warning(
                "OAUTHBEARER accepts tokens without a signature: every client can be any user", listener=self.listener
            )
        self._is_unsecured = made.is_unsecured

    def check(self, settings: Settings) -> None:
        """Refuse settings that `apply` would refuse. Errors: ConfigError."""
        self._made(settings)

    def _made(self, settings: Settings) -> _Mechanisms:
        listener = self.listener
        given = settings.for_listener(SaslSettings, listener)
        made = _Mechanisms(given, {}, {}, None, is_unsecured=False)
        for name in given.sasl_enabled_mechanisms:
            if name not in _MODULES:
                raise ConfigError(
                    f"sasl.enabled.mechanisms: the listener {listener} would offer {name}, which is not supported; "
                    f"choose among {', '.join(_MODULES)}"
                )
            own = settings.for_listener(SaslSettings, listener, mechanism=name)
            made.max_reauth_ms[name] = own.connections_max_reauth_ms
            module = login_module(settings, listener, name)
            if name == "OAUTHBEARER":
                keys = self._issuer_keys(own)
                made.begin[name] = _token_rules(own, keys, self.env.timestamp_ms)
                made = made._replace(keys=keys, is_unsecured=own.kbroker_sasl_oauthbearer_unsecured)
            else:
                made.begin[name] = self._beginner(name, own, module)
        if not made.begin:
            raise ConfigError(f"sasl.enabled.mechanisms: the listener {listener} needs a mechanism")
        return made

    def _beginner(self, name: str, given: SaslSettings, module: LoginModule) -> Callable[[], Exchange]:
        users = self._users
        if name in SCRAM:
            return lambda: ScramExchange(SCRAM[name], users, f"{self.env.random.getrandbits(_NONCE_BITS):032x}")
        passwords = {
            option.removeprefix(_USER): password
            for option, password in module.options.items()
            if option.startswith(_USER)
        }
        known = PlainUsers(passwords, users if given.kbroker_sasl_plain_scram_credentials else None)
        return lambda: PlainExchange(known)

    def _issuer_keys(self, given: SaslSettings) -> IssuerKeys | None:
        """The keys that check tokens: those in use, which are loaded, unless a setting of them has changed."""
        from kbroker.security.sasl.jwks import IssuerKeys, checked_url  # noqa: PLC0415  (few brokers need it)

        url = checked_url(given)
        if url is None and not given.kbroker_sasl_oauthbearer_unsecured:
            raise ConfigError(
                f"sasl.oauthbearer.jwks.endpoint.url is missing: OAUTHBEARER on the listener {self.listener} needs the "
                "keys that sign tokens; kbroker.sasl.oauthbearer.unsecured=true accepts tokens without a signature, "
                "for tests"
            )
        if url is None:
            return None
        if url.scheme == "file" and not self.env.disk.exists(unquote(url.path)):
            raise ConfigError("sasl.oauthbearer.jwks.endpoint.url names a file that does not exist")
        if find_spec("jwt") is None or find_spec("cryptography") is None:
            raise ConfigError("OAUTHBEARER needs PyJWT and cryptography: pip install 'kbroker[security]'")
        made = IssuerKeys(given, url, partial(_read, self.env), self.env.now_ms)
        return self._keys if self._keys is not None and self._keys.origin == made.origin else made

    def begin(self, mechanism: str) -> Exchange:
        """A login with one of the listener's mechanisms."""
        return self._begin[mechanism]()

    async def run(self) -> None:
        """Read the keys of OAUTHBEARER again when they expire, forever."""
        while True:
            keys, self._keys_changed = self._keys, trio.Event()
            due_ms = None if keys is None else keys.due_ms
            pause_ms = math.inf if due_ms is None else max(_MIN_PAUSE_MS, due_ms - self.env.now_ms())
            with trio.move_on_after(pause_ms / 1000):
                await self._keys_changed.wait()
                continue
            if keys is not None:
                await self._reading.run_blocking(keys.refresh)

    async def respond(self, exchange: Exchange, token: bytes, host: str) -> Step:
        """The mechanism's answer to a token from this address. Errors: AuthenticationFailed."""
        keys = self._keys
        reads = 0 if keys is None else keys.reads
        step = await self._answer(exchange, token, host)
        if keys is not None and isinstance(step.refusal, UnknownKey) and (keys.may_change or keys.reads != reads):
            await self._reading.run_blocking(keys.refresh)
            self._keys_changed.set()
            step = await self._answer(exchange, token, host)
        return step

    async def _answer(self, exchange: Exchange, token: bytes, host: str) -> Step:
        while True:
            while self.failures and (pause_ms := self.failures.pause_ms(host, self.env.now_ms())):
                await self.env.sleep_ms(pause_ms)
            if not exchange.is_slow:
                return exchange.respond(token)
            lane = self._hashing if isinstance(exchange, PlainExchange) else self._tokens
            # While this attempt waits for a thread, others of the address may fail, so look for a pause again. Attempts
            # that are being checked at this moment, at most one in each thread, do not count yet.
            async with lane.turns:
                if not self.failures.pause_ms(host, self.env.now_ms()):
                    return await lane.threads.run_blocking(exchange.respond, token)

    def on_failure(self, mechanism: str, host: str, why: AuthenticationFailed) -> int:
        """Note and log a failed login; return how long the answer waits, in milliseconds."""
        now_ms = self.env.now_ms()
        left_out = self._log_limit.admit(counted_address(host), now_ms=now_ms)
        if left_out is not None:
            logger.warning(
                "login failed", listener=self.listener, mechanism=mechanism, peer=host, why=why, left_out=left_out
            )
        return self.failures.note(host, now_ms)

    def session_ms(self, mechanism: str, expires_ms: int | None) -> int | None:
        """How long a session may last, None for ever. Units: expires_ms is wall time."""
        limits = [] if expires_ms is None else [max(0, expires_ms - self.env.timestamp_ms())]
        if (longest_ms := self._max_reauth_ms.get(mechanism, 0)) > 0:
            limits.append(longest_ms)
        return min(limits, default=None)


def login_module(settings: Settings, listener: str, mechanism: str) -> LoginModule:
    """The login module of a mechanism on a listener. Errors: ConfigError if PLAIN needs one, or it cannot be read."""
    key = f"listener.name.{listener.lower()}.{mechanism.lower()}.sasl.jaas.config"
    text = settings.layers.text(key)
    if text is None:
        for part in (f"{listener.lower()}.KafkaServer", "KafkaServer"):
            if (module := settings.layers.login_modules.get((part, _MODULES[mechanism]))) is not None:
                return module
        own = settings.for_listener(SaslSettings, listener, mechanism=mechanism)
        if mechanism == "PLAIN" and not own.kbroker_sasl_plain_scram_credentials:
            unprefixed = "sasl.jaas.config"
            ignored = f" ({unprefixed} has no effect without this prefix)" if settings.layers.text(unprefixed) else ""
            raise ConfigError(
                f"{key} is missing{ignored}: it lists the users of PLAIN on the listener {listener}, as in "
                'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="password"; '
                "(kbroker.jaas.file names a file in the form of java.security.auth.login.config)"
            )
        return LoginModule(_MODULES[mechanism], {})
    found = parse_jaas(text, key=key)
    if found.name != _MODULES[mechanism]:
        raise ConfigError(f"{key}: {mechanism} needs {_MODULES[mechanism]}, not {found.name}")
    return found


def _token_rules(given: SaslSettings, keys: IssuerKeys | None, now_ms: Callable[[], int]) -> Callable[[], Exchange]:
    from kbroker.security.sasl.oauth import OauthExchange, TokenRules  # noqa: PLC0415  (few brokers need it)

    rules = TokenRules(given, keys, now_ms)
    return lambda: OauthExchange(rules)


def _read(env: Env, path: str, max_bytes: int) -> bytes:
    file = env.disk.open(path, writable=False)
    try:
        return file.pread(min(max_bytes, file.size()), 0)
    finally:
        file.close()

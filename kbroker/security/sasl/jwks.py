"""The public keys of an issuer of tokens, from a file or a URL that the operator has set.

The keys are read at the first login, and again after the refresh time. A token with an unknown key id causes a read
too, but at most once in the longest pause, so that clients cannot make the broker ask the issuer often. If a read
fails, the known keys stay in use, and the next read waits for a growing pause. Redirects are not followed, and an
answer has a largest size and a longest time.

`refresh` blocks and has a thread of its own: logins with a known key never wait for the issuer.

Source  RFC 7517; RefreshingHttpsJwks of Apache Kafka 4.3.1
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

from kbroker.config.listeners import is_loopback
from kbroker.config.sasl import SaslSettings
from kbroker.config.values import ConfigError
from kbroker.runtime.event_log import get_logger
from kbroker.security.sasl import UnknownKey

MAX_BYTES: Final = 1 << 20
MAX_KEYS: Final = 100
MAX_CANDIDATES: Final = 8
"""The most keys that are tried for a token without a key id."""
TIMEOUT_S: Final = 3.0
MIN_RSA_BITS: Final = 2048
_UNPRINTABLE: Final = re.compile(r"[^\x21-\x7e]")

logger = get_logger(__name__)


class UnreadableKeys(Exception):
    """The keys cannot be read now."""


def checked_url(settings: SaslSettings) -> SplitResult | None:
    """The URL of the keys, None without one. Errors: ConfigError."""
    text = settings.sasl_oauthbearer_jwks_endpoint_url
    if text is None:
        return None
    try:
        url = urlsplit(text)
        _ = url.port  # parses it
    except ValueError:
        url = None
    if url is None or (url.scheme != "file" and _UNPRINTABLE.search(text)):
        # Errors of the parser would quote the text, which may contain a password.
        raise ConfigError("sasl.oauthbearer.jwks.endpoint.url is not a URL") from None
    host = url.hostname or ""
    is_local = host == "localhost" or is_loopback(host)
    if url.scheme == "http" and not is_local and not settings.kbroker_sasl_oauthbearer_http:
        raise ConfigError(
            "sasl.oauthbearer.jwks.endpoint.url: with http everybody in the network can replace the keys; use https, "
            "or allow it with kbroker.sasl.oauthbearer.http=true"
        )
    is_file = url.scheme == "file" and url.path and not host
    if not is_file and (url.scheme not in ("http", "https") or not host or url.username is not None):
        raise ConfigError("sasl.oauthbearer.jwks.endpoint.url is not a URL with https or file")
    return url


class IssuerKeys:
    """See the module docstring. now_ms is monotonic; origin says where the keys are, and how often they are read."""

    def __init__(
        self,
        settings: SaslSettings,
        url: SplitResult,
        read_file: Callable[[str, int], bytes],
        now_ms: Callable[[], int],
    ) -> None:
        self.origin = (
            url,
            settings.sasl_oauthbearer_jwks_endpoint_refresh_ms,
            settings.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms,
            settings.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms,
        )
        self._read_file = read_file
        self._now_ms = now_ms
        self._keys: list[Any] = []
        self._expires_ms = self._next_ms = now_ms()
        self._pause_ms = 0
        self._is_reading = False
        self.reads = 0

    def find(self, key_id: str | None) -> list[Any]:
        """The keys with this id, or the first ones without an id. Errors: UnknownKey."""
        found = [key for key in self._keys if key_id is None or key.key_id == key_id][:MAX_CANDIDATES]
        if not found:
            raise UnknownKey("the issuer has no key with the id that the token names")
        return found

    @property
    def may_change(self) -> bool:
        """Whether `refresh` would read the keys now, or wait for a read."""
        return self._is_reading or self._now_ms() >= self._next_ms

    @property
    def due_ms(self) -> int | None:
        """The time to read them again, None before the first read. Units: monotonic."""
        return max(self._expires_ms, self._next_ms) if self.reads else None

    def refresh(self) -> None:
        """Read the keys, unless it was tried a moment ago. Blocking: only one thread may call it at a time."""
        now_ms = self._now_ms()
        if now_ms >= self._next_ms:
            self._is_reading = True
            try:
                self._refresh(now_ms)
            finally:
                self.reads += 1
                self._is_reading = False

    def _refresh(self, now_ms: int) -> None:
        url, refresh_ms, first_ms, longest_ms = self.origin
        self._next_ms = now_ms + longest_ms
        try:
            self._keys = usable_keys(self._read())
        except (UnreadableKeys, OSError, http.client.HTTPException, ValueError) as error:
            self._pause_ms = min(longest_ms, max(first_ms, 2 * self._pause_ms))
            self._next_ms = self._now_ms() + self._pause_ms
            # A query may contain a token.
            shown = url._replace(netloc=url.netloc.rpartition("@")[2], query="", fragment="").geturl()
            logger.warning("cannot read the keys of OAUTHBEARER; will retry", url=shown, why=error)
        else:
            self._pause_ms = 0
            self._expires_ms = now_ms + refresh_ms

    def _read(self) -> bytes:
        url = self.origin[0]
        if url.scheme == "file":
            data = self._read_file(unquote(url.path), MAX_BYTES + 1)
        else:
            with _connected(url) as connection:
                connection.request("GET", (url.path or "/") + (f"?{url.query}" if url.query else ""))
                answer = connection.getresponse()
                if answer.status != http.client.OK:
                    raise UnreadableKeys(f"the answer has status {answer.status}")
                data = answer.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise UnreadableKeys(f"there are more than {MAX_BYTES} bytes")
        return data


@contextmanager
def _connected(url: SplitResult) -> Iterator[http.client.HTTPConnection]:
    """A connection that is shut down after TIMEOUT_S, which ends what waits for it. The time-out of a socket is for
    each packet only, and an issuer could send one byte at a time, also in the TLS handshake.

    Errors: OSError, and UnreadableKeys if it took longer.
    """
    is_secure, host, is_late = url.scheme == "https", url.hostname or "", threading.Event()
    made = (http.client.HTTPSConnection if is_secure else http.client.HTTPConnection)(host, url.port)
    with socket.create_connection((host, made.port), TIMEOUT_S) as plain, plain.dup() as same:

        def shut_down() -> None:
            is_late.set()
            with suppress(OSError):
                same.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(TIMEOUT_S, shut_down)
        timer.daemon = True
        timer.start()
        try:
            made.sock = ssl.create_default_context().wrap_socket(plain, server_hostname=host) if is_secure else plain
            yield made
        except (OSError, http.client.HTTPException, ValueError):
            if not is_late.is_set():
                raise
        finally:
            timer.cancel()
            timer.join()
            made.close()
        if is_late.is_set():  # an answer without a length may look complete
            raise UnreadableKeys("the answer is too slow")


def usable_keys(data: bytes) -> list[Any]:
    """The keys of a JWK set that can check signatures; others are left out. Errors: UnreadableKeys, ValueError."""
    import jwt  # noqa: PLC0415  (an optional dependency)

    try:
        contents = json.loads(data)
    except RecursionError as error:
        raise UnreadableKeys("it is nested too deeply") from error
    listed = contents.get("keys") if isinstance(contents, dict) else None
    if not isinstance(listed, list) or len(listed) > MAX_KEYS:
        raise UnreadableKeys(f"it is not a list of at most {MAX_KEYS} keys")
    found = []
    for each in listed:
        if (
            isinstance(each, Mapping)
            and each.get("kty") in ("RSA", "EC")
            and each.get("use", "sig") == "sig"
            and "d" not in each
        ):
            try:
                key = jwt.PyJWK(dict(each))
            except (jwt.PyJWTError, ValueError, TypeError, AttributeError):
                continue
            if each["kty"] == "EC" or key.key.key_size >= MIN_RSA_BITS:
                found.append(key)
    return found

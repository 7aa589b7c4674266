"""OAUTHBEARER: a client logs in with a signed token (JWT). The server checks the signature and the claims.

The keys come from a place that only the operator names (`jwks.py`): no URL in a token is ever read. Only asymmetric
algorithms are accepted, and "none" only with an explicit setting, which tests of clients use.

After a token that is not accepted the server sends a status, the client acknowledges it, and then the login fails.

Source  RFC 7628, RFC 7515, RFC 7519, RFC 8725; OAuthBearerSaslServer and BrokerJwtValidator of Apache Kafka 4.3.1
"""

from __future__ import annotations

import base64
import json
import re
from binascii import Error as NotBase64
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from kbroker.config.sasl import SaslSettings
from kbroker.security.sasl import AuthenticationFailed, Step, UnknownKey

MAX_TOKEN_BYTES: Final = 64 * 1024
_INVALID: Final = b'{"status":"invalid_token"}'
_FIRST: Final = re.compile(
    rb"n,(?:a=(?P<acts_as>(?:[^=,\0\x01]++|=2C|=3D)++))?,\x01"
    rb"(?P<pairs>(?:[A-Za-z]++=[\x21-\x7e \t\r\n]*+\x01){1,100})\x01"
)
_SURROGATE: Final = re.compile("[\ud800-\udfff]")  # half a character, which has no encoding
_JAVA_SPACES: Final = "".join(map(chr, range(0x21)))
"""The characters that String.trim() removes. Python's strip() removes more, which could make one user into another."""
_TOKEN: Final = re.compile(r"[A-Za-z0-9_=-]+\.[A-Za-z0-9_=-]+\.[A-Za-z0-9_=-]*", re.ASCII)


class Keys(Protocol):
    """Gives the keys of an issuer; `find` is called in a thread."""

    def find(self, key_id: str | None) -> list[Any]:
        """The keys with this id, or all without one. Errors: UnknownKey if there are none."""
        ...


class Identity(NamedTuple):
    """The user and the end in the claims of a token. Units: expires_ms is wall time."""

    user: str
    expires_ms: int


class TokenRules:
    """Checks tokens. keys None accepts only tokens without a signature; the settings allow them explicitly."""

    def __init__(self, settings: SaslSettings, keys: Keys | None, now_ms: Callable[[], int]) -> None:
        self._settings = settings
        self._keys = keys
        self._now_ms = now_ms

    def check(self, token: str) -> Identity:
        """The user of a valid token. Errors: AuthenticationFailed."""
        if len(token) > MAX_TOKEN_BYTES or not _TOKEN.fullmatch(token):
            raise AuthenticationFailed("the token is not a JWT")
        header = _json(token.partition(".")[0])
        if header.get("alg") == "none" and self._settings.kbroker_sasl_oauthbearer_unsecured:
            _, claims, signature = token.split(".")
            if signature:
                raise AuthenticationFailed("a token without an algorithm has a signature")
            return self._identity(_json(claims))
        return self._identity(self._verified(token, header))

    def _verified(self, token: str, header: Mapping[str, Any]) -> Mapping[str, Any]:
        """The claims of a token whose signature is valid."""
        import jwt  # noqa: PLC0415  (an optional dependency)

        algorithms = self._settings.kbroker_sasl_oauthbearer_algorithms
        algorithm, key_id = header.get("alg"), header.get("kid")
        if algorithm not in algorithms:
            raise AuthenticationFailed(f"the algorithm {str(algorithm)[:20]!r} is not accepted")
        if self._keys is None:
            raise AuthenticationFailed("sasl.oauthbearer.jwks.endpoint.url is not set")
        if key_id is not None and not isinstance(key_id, str):
            raise AuthenticationFailed("the id of the key is not a text")
        if "crit" in header or header.get("b64") is False:
            raise AuthenticationFailed("the token has an extension")
        options: Any = dict.fromkeys(("verify_exp", "verify_nbf", "verify_iat", "verify_aud", "verify_iss"), False)
        failure = "no key fits"
        for key in self._keys.find(key_id):
            if key.key_type != ("EC" if algorithm.startswith("ES") else "RSA"):
                continue
            try:
                claims: Mapping[str, Any] = jwt.decode(token, key.key, algorithms=[algorithm], options=options)
            except (jwt.PyJWTError, ValueError, TypeError) as error:
                failure = f"{type(error).__name__}: {error}"
            else:
                return claims
        raise AuthenticationFailed(f"the signature is not valid: {failure}")

    def _identity(self, claims: Mapping[str, Any]) -> Identity:
        """Check the claims, whose signature is valid."""
        given = self._settings
        now_s, skew_s = self._now_ms() / 1000, given.sasl_oauthbearer_clock_skew_seconds
        expires_s, _ = _time(claims, "exp"), _time(claims, "iat")
        if now_s >= expires_s + skew_s:
            raise AuthenticationFailed("the token has expired")
        if "nbf" in claims and now_s < _time(claims, "nbf") - skew_s:
            raise AuthenticationFailed("the token is not valid yet")
        audiences = claims.get("aud", [])
        audiences = [audiences] if isinstance(audiences, str) else audiences
        if not isinstance(audiences, list):
            raise AuthenticationFailed("the claim aud is neither a text nor a list")
        expected = given.sasl_oauthbearer_expected_audience
        if expected and not any(isinstance(one, str) and one in expected for one in audiences):
            raise AuthenticationFailed("the token is for another audience")
        issuer = given.sasl_oauthbearer_expected_issuer
        if issuer is not None and claims.get("iss") != issuer:
            raise AuthenticationFailed("the token is from another issuer")
        scope = claims.get(given.sasl_oauthbearer_scope_claim_name, [])
        if not isinstance(scope, str) and not (isinstance(scope, list) and all(isinstance(one, str) for one in scope)):
            raise AuthenticationFailed("the claim with the scope is neither a text nor a list of texts")
        user = claims.get(given.sasl_oauthbearer_sub_claim_name)
        if not isinstance(user, str) or not (user := user.strip(_JAVA_SPACES)) or _SURROGATE.search(user):
            raise AuthenticationFailed("the token names no user")
        return Identity(user, int(expires_s * 1000))


class OauthExchange:
    """One login: a token. The client acknowledges the status of a token that is not accepted.

    After UnknownKey the same token can be checked again, when the keys have been read.
    """

    is_slow = True

    def __init__(self, rules: TokenRules) -> None:
        self._rules: TokenRules | None = rules

    def respond(self, token: bytes) -> Step:
        """Take the client's message. Errors: AuthenticationFailed."""
        rules, self._rules = self._rules, None
        if rules is None:
            raise AuthenticationFailed("a message after the end of the exchange")
        match = _FIRST.fullmatch(token) if len(token) <= 2 * MAX_TOKEN_BYTES else None
        if match is None:
            raise AuthenticationFailed("the message cannot be read")
        pairs = [pair.partition(b"=") for pair in match["pairs"][:-1].split(b"\x01")]
        values = {name: value for name, _, value in pairs}
        kind, _, text = values.get(b"auth", b"").decode().strip().partition(" ")
        if len(values) != len(pairs) or kind.lower() != "bearer":
            raise AuthenticationFailed("the message has no bearer token, or names a value twice")
        try:
            identity = rules.check(text.strip())
            acts_as = (match["acts_as"] or b"").replace(b"=2C", b",").replace(b"=3D", b"=")
            if acts_as not in (b"", identity.user.encode()):
                raise AuthenticationFailed("the client asks to act as another user")
        except AuthenticationFailed as error:
            if isinstance(error, UnknownKey):
                self._rules = rules
            return Step(_INVALID, refusal=error)
        return Step(b"", identity.user, identity.expires_ms)


def _json(part: str) -> Mapping[str, Any]:
    try:
        found = json.loads(base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True))
    except (NotBase64, ValueError, RecursionError) as error:
        raise AuthenticationFailed("the token cannot be read") from error
    if not isinstance(found, dict):
        raise AuthenticationFailed("the token cannot be read")
    return found


def _time(claims: Mapping[str, Any], name: str) -> float:
    found = claims.get(name)
    if isinstance(found, bool) or not isinstance(found, int | float) or not abs(found) <= 1e12:  # nor NaN
        raise AuthenticationFailed(f"the claim {name} is missing, or is not a time")
    return found

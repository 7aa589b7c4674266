"""SCRAM-SHA-256 and SCRAM-SHA-512: credentials, and the server's side of a login.

The server stores a salted hash of a hash (StoredKey), with which it checks the client's proof, and a key (ServerKey),
with which it proves that it knows the user. Neither can be used to log in.

For an unknown user the server makes up a credential from a secret, with the form of the credentials that exist. So the
exchange has the same steps, sizes and cost as for a known user with a wrong password. Apache Kafka fails before it
sends a salt, which tells which users exist.

As in Kafka, names and passwords are compared as they are, without SASLprep: Java clients do not normalize them.
`is_portable` tells which texts are the same for clients that do.

Source  RFC 5802, RFC 7677, RFC 4013; ScramSaslServer and ScramFormatter of Apache Kafka 4.3.1; CVE-2024-56128
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from binascii import Error as NotBase64
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from kbroker.security.sasl import MAX_TOKEN_BYTES, AuthenticationFailed, Step

MIN_ITERATIONS: Final = 4_096
MAX_ITERATIONS: Final = 16_384
SALT_ALPHABET: Final = b"0123456789abcdefghijklmnopqrstuvwxyz"
"""The alphabet of the salts of Kafka's tools."""

_NAME: Final = r"(?:[^=,\0]|=2C|=3D)+"
_PRINTABLE: Final = r"[\x21-\x2b\x2d-\x7e]+"
_EXTENSIONS: Final = r"(?:,[A-Za-z]+=[^,\0]+)*"
_BASE64: Final = r"[A-Za-z0-9+/]+={0,2}"
_FIRST: Final = re.compile(
    rf"(?P<header>n,(?:a=(?P<acts_as>{_NAME}))?,)(?P<bare>n=(?P<name>{_NAME}),r=(?P<nonce>{_PRINTABLE})"
    rf"(?P<extensions>{_EXTENSIONS}))"
)
_FINAL: Final = re.compile(
    rf"(?P<unproven>c=(?P<header>{_BASE64}),r=(?P<nonce>{_PRINTABLE}){_EXTENSIONS}),p=(?P<proof>{_BASE64})"
)
_BAD_CHARACTERS: Final = ("c12", "c21_c22", "c3", "c4", "c5", "c6", "c7", "c8", "c9", "a1")
"""The tables of RFC 3454 with characters that SASLprep maps or prohibits."""


class ScramMechanism(NamedTuple):
    """A mechanism with its number in Kafka's requests and records, and its hash function."""

    name: str
    number: int
    hash: str
    size: int

    def sign(self, key: bytes, message: bytes) -> bytes:
        """HMAC with the mechanism's hash function."""
        return hmac.digest(key, message, self.hash)

    def digest(self, data: bytes) -> bytes:
        """The hash of some bytes."""
        return hashlib.new(self.hash, data).digest()


SCRAM_SHA_256: Final = ScramMechanism("SCRAM-SHA-256", 1, "sha256", 32)
SCRAM_SHA_512: Final = ScramMechanism("SCRAM-SHA-512", 2, "sha512", 64)
MECHANISMS: Final = {one.name: one for one in (SCRAM_SHA_256, SCRAM_SHA_512)}
BY_NUMBER: Final = {one.number: one for one in MECHANISMS.values()}


class Credential(NamedTuple):
    """What the server stores for one user and mechanism."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"Credential([hidden], iterations={self.iterations})"


def salted_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """The hash that clients send instead of a password to create a credential. It takes milliseconds."""
    return hashlib.pbkdf2_hmac(mechanism.hash, password.encode(), salt, iterations)


def credential_of(mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int) -> Credential:
    """The credential for a salted password."""
    stored_key = mechanism.digest(mechanism.sign(salted, b"Client Key"))
    return Credential(salt, stored_key, mechanism.sign(salted, b"Server Key"), iterations)


def is_portable(text: str) -> bool:
    """Whether SASLprep leaves a text as it is, so that clients with and without SASLprep agree about it."""
    import stringprep  # noqa: PLC0415  (only commands and a first start need it)
    import unicodedata  # noqa: PLC0415

    if unicodedata.normalize("NFKC", text) != text or any(stringprep.in_table_b1(each) for each in text):
        return False
    if any(getattr(stringprep, f"in_table_{table}")(each) for table in _BAD_CHARACTERS for each in text):
        return False
    is_right_to_left = [stringprep.in_table_d1(each) for each in text]
    if not any(is_right_to_left):
        return True
    return is_right_to_left[0] and is_right_to_left[-1] and not any(stringprep.in_table_d2(each) for each in text)


class CredentialStore:
    """Where the credentials of a node are, which it knows only after it has loaded its metadata.

    Shape  records gives the current records by user and number of the mechanism
    """

    def __init__(self) -> None:
        self.records: Callable[[], Mapping[tuple[str, int], Any]] = dict
        self.cluster_id = ""


class ScramUsers:
    """Finds credentials. secret and the cluster id are the same on all brokers and after a restart."""

    def __init__(self, store: CredentialStore, secret: bytes) -> None:
        self._store = store
        self._secret = secret
        self._examples: tuple[object, dict[int, Any]] = (None, {})

    def find(self, user: str, mechanism: ScramMechanism) -> tuple[Credential, bool]:
        """The credential of a user, and whether it exists; else one that no password satisfies."""
        records = self._store.records()
        record = records.get((user, mechanism.number))
        if record is not None:
            return Credential(record.salt, record.stored_key, record.server_key, record.iterations), True
        return self._made_up(user, mechanism, records), False

    def preferred(self, user: str) -> ScramMechanism:
        """The strongest mechanism for which a user has a credential; for an unknown user one that others have."""
        records = self._store.records()
        for mechanism in (SCRAM_SHA_512, SCRAM_SHA_256):
            if (user, mechanism.number) in records:
                return mechanism
        return SCRAM_SHA_512 if SCRAM_SHA_512.number in self._examples_in(records) else SCRAM_SHA_256

    def _made_up(self, user: str, mechanism: ScramMechanism, records: Mapping[tuple[str, int], Any]) -> Credential:
        """With the number of iterations, and the length and alphabet of the salt, of a credential that exists."""
        example = self._examples_in(records).get(mechanism.number)
        size, iterations = (26, MIN_ITERATIONS) if example is None else (len(example.salt), example.iterations)
        seed = hmac.digest(self._secret, f"{self._store.cluster_id}\0{mechanism.name}\0{user}".encode(), "sha512")
        salt = hashlib.shake_256(seed).digest(size)
        if example is None or not set(example.salt) - set(SALT_ALPHABET):
            salt = bytes(SALT_ALPHABET[byte % len(SALT_ALPHABET)] for byte in salt)
        key = seed[: mechanism.size]
        return Credential(salt, key, key, iterations)

    def _examples_in(self, records: Mapping[tuple[str, int], Any]) -> dict[int, Any]:
        """One record for each mechanism that has some."""
        if self._examples[0] is not records:
            examples: dict[int, Any] = {}
            for (_, number), record in records.items():
                examples.setdefault(number, record)
                if len(examples) == len(BY_NUMBER):
                    break
            self._examples = records, examples
        return self._examples[1]


class ScramExchange:
    """One login. Client: name and nonce; server: nonce, salt, iterations; client: proof; server: signature.

    Shape  nonce is random and used once
    """

    is_slow = False

    def __init__(self, mechanism: ScramMechanism, users: ScramUsers, nonce: str) -> None:
        self._mechanism = mechanism
        self._users = users
        self._server_nonce = nonce
        self._next: Callable[[str], Step] = self._on_first
        self._user = self._header = self._nonce = self._signed = ""
        self._credential = Credential(b"", b"", b"", 0)
        self._is_known = False

    def respond(self, token: bytes) -> Step:
        """Take the client's first or final message. Errors: AuthenticationFailed."""
        respond, self._next = self._next, _is_over
        if len(token) > MAX_TOKEN_BYTES:
            raise AuthenticationFailed(f"a message of {len(token)} bytes")
        try:
            text = token.decode()
        except UnicodeDecodeError as error:
            raise AuthenticationFailed("a message that is not UTF-8") from error
        return respond(text)

    def _on_first(self, text: str) -> Step:
        match = _FIRST.fullmatch(text)
        if match is None:
            raise AuthenticationFailed("the first message cannot be read, or asks for channel binding")
        self._user = match["name"].replace("=2C", ",").replace("=3D", "=")
        acts_as = (match["acts_as"] or "").replace("=2C", ",").replace("=3D", "=")
        if acts_as not in ("", self._user):
            raise AuthenticationFailed("the client asks to act as another user")
        if ",tokenauth=" in match["extensions"]:
            raise AuthenticationFailed("delegation tokens are not supported")
        self._credential, self._is_known = self._users.find(self._user, self._mechanism)
        self._header = base64.b64encode(match["header"].encode()).decode()
        self._nonce = match["nonce"] + self._server_nonce
        salt = base64.b64encode(self._credential.salt).decode()
        first = f"r={self._nonce},s={salt},i={self._credential.iterations}"
        self._signed = f"{match['bare']},{first}"
        self._next = self._on_final
        return Step(first.encode())

    def _on_final(self, text: str) -> Step:
        match = _FINAL.fullmatch(text)
        if match is None:
            raise AuthenticationFailed("the final message cannot be read")
        # Apache Kafka 4 compares the whole nonce too (CVE-2024-56128); librdkafka before 2.6.1 sends a wrong one.
        if match["header"] != self._header or not hmac.compare_digest(match["nonce"], self._nonce):
            raise AuthenticationFailed("the final message does not belong to the first one")
        try:
            proof = base64.b64decode(match["proof"], validate=True)
        except NotBase64 as error:
            raise AuthenticationFailed("the proof is not base64") from error
        mechanism, credential = self._mechanism, self._credential
        signed = f"{self._signed},{match['unproven']}".encode()
        signature = mechanism.sign(credential.stored_key, signed)
        if len(proof) != len(signature):
            raise AuthenticationFailed("the proof has a wrong size")
        key = bytes(one ^ other for one, other in zip(proof, signature, strict=True))
        is_right = hmac.compare_digest(mechanism.digest(key), credential.stored_key)
        answer = mechanism.sign(credential.server_key, signed)
        if not is_right or not self._is_known:
            raise AuthenticationFailed("a wrong password" if self._is_known else "an unknown user")
        return Step(b"v=" + base64.b64encode(answer), self._user)


def _is_over(_text: str) -> Step:
    raise AuthenticationFailed("a message after the end of the exchange")

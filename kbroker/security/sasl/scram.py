"""SCRAM-SHA-256 and SCRAM-SHA-512: credentials, and the server's side of a login.

The server stores a salted hash of a hash (StoredKey), with which it checks the client's proof, and a key (ServerKey),
with which it proves that it knows the user. Neither can be used to log in.

For an unknown user the server makes up a credential with the form of one that exists. So the exchange has the same
steps, sizes and cost as for a known user with a wrong password. Apache Kafka fails before it sends a salt, which tells
which users exist. The made-up credential depends on the name and on a secret that the controller stores in the metadata
log with the first credential: so it is the same on every listener, on every node and after a restart, and no client can
compute it.

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
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kbroker.config.sasl import SCRAM_MIN_ITERATIONS, SCRAM_SECRET
from kbroker.security.sasl import MAX_TOKEN_BYTES, AuthenticationFailed, Step

if TYPE_CHECKING:
    from kbroker.metadata.image import Image

MIN_ITERATIONS: Final = SCRAM_MIN_ITERATIONS
MAX_ITERATIONS: Final = 16_384
SALT_ALPHABET: Final = b"0123456789abcdefghijklmnopqrstuvwxyz"
"""The alphabet of the salts of Kafka's tools."""

_SALT_BITS: Final = 130
_KAFKAS_SALT: Final = re.compile(rb"[1-9a-z][0-9a-z]{19,25}")
"""What `new_salt` gives. Fewer than 20 characters are as good as impossible."""
_AS_TEXT: Final = bytes(SALT_ALPHABET[byte % len(SALT_ALPHABET)] for byte in range(256))
_SAMPLE: Final = 1_000
_MAX_FORMS: Final = 8
_NAME: Final = r"(?:[^=,\0]++|=2C|=3D)++"
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
        # hashlib.new looks for the function each time.
        return (hashlib.sha256 if self.size == 32 else hashlib.sha512)(data).digest()


SCRAM_SHA_256: Final = ScramMechanism("SCRAM-SHA-256", 1, "sha256", 32)
SCRAM_SHA_512: Final = ScramMechanism("SCRAM-SHA-512", 2, "sha512", 64)
MECHANISMS: Final = {one.name: one for one in (SCRAM_SHA_256, SCRAM_SHA_512)}
BY_NUMBER: Final = {one.number: one for one in MECHANISMS.values()}


class Credential(NamedTuple):
    """The stored keys of one user and mechanism."""

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


def new_salt(seed: bytes) -> bytes:
    """A salt as Kafka's tools make it: a random number of 130 bits in base 36, so usually 25 or 26 characters.

    Some clients cannot log in with a salt that is not a text. And whatever the salts of users have in common, made-up
    ones must have too: a salt of 26 characters, for example, always begins with 1.
    """
    number = int.from_bytes(hashlib.sha256(seed).digest()) >> (hashlib.sha256().digest_size * 8 - _SALT_BITS)
    digits = bytearray()
    while number:
        number, digit = divmod(number, len(SALT_ALPHABET))
        digits.append(SALT_ALPHABET[digit])
    digits.reverse()
    return bytes(digits)


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

    Shape  image gives the current metadata; own_secret stands in for the cluster's secret as long as there is none
    """

    def __init__(self, own_secret: bytes = b"") -> None:
        self.image: Callable[[], Image | None] = lambda: None
        self.own_secret = own_secret


class _Form(NamedTuple):
    """The parts of a credential that a client sees, without the bytes of the salt. salt_size is None for `new_salt`."""

    salt_size: int | None
    iterations: int
    is_text: bool = True


def _form_of(salt: bytes, iterations: int) -> _Form:
    if _KAFKAS_SALT.fullmatch(salt) and int(salt, len(SALT_ALPHABET)) < 1 << _SALT_BITS:
        return _Form(None, iterations)
    return _Form(len(salt), iterations, salt.isalnum())


_DEFAULT_FORMS: Final = [_Form(None, MIN_ITERATIONS)]
_CHOOSING_BYTES: Final = 32


class ScramUsers:
    """Finds credentials, and makes up others."""

    def __init__(self, store: CredentialStore) -> None:
        self._store = store
        self._forms: tuple[object, dict[int, list[_Form]]] = (None, {})
        self._most: tuple[object, dict[int, int]] = (None, {})

    def find(self, user: str, mechanism: ScramMechanism) -> tuple[Credential, bool]:
        """The credential of a user, and whether it exists; else one that no password satisfies."""
        image = self._store.image()
        records: Mapping[tuple[str, int], Any] = {} if image is None else image.scram_credentials
        made_up = self._made_up(user, mechanism, image, records)  # also for a known user, so that both take as long
        record = records.get((user, mechanism.number))
        if record is None:
            return made_up, False
        return Credential(record.salt, record.stored_key, record.server_key, record.iterations), True

    def is_password(self, user: str, password: str) -> bool:
        """Whether it is the password of a user; blocking.

        Every check hashes as much as for the user with the most iterations, with each mechanism that has users. So its
        time reveals neither whether the user exists nor which credential the user has.
        """
        most = self._most_iterations()
        image = self._store.image()
        records: Mapping[tuple[str, int], Any] = {} if image is None else image.scram_credentials
        strongest_first = (SCRAM_SHA_512, SCRAM_SHA_256)
        mechanism = next((one for one in strongest_first if (user, one.number) in records), None)
        if mechanism is None:
            mechanism = next((one for one in strongest_first if one.number in most), SCRAM_SHA_256)
        stored, is_known = self.find(user, mechanism)
        salted = salted_password(mechanism, password, stored.salt, stored.iterations)
        made = credential_of(mechanism, salted, stored.salt, stored.iterations)
        for number, iterations in most.items():
            rest = iterations - stored.iterations if number == mechanism.number else iterations
            salted_password(BY_NUMBER[number], password, stored.salt, 1 + max(0, rest))
        return hmac.compare_digest(made.stored_key, stored.stored_key) and is_known

    def _made_up(
        self, user: str, mechanism: ScramMechanism, image: Image | None, records: Mapping[tuple[str, int], Any]
    ) -> Credential:
        """The name and the secret choose one of the existing forms, so each form also has users that do not exist."""
        stored = None if image is None else image.broker_configs(None).get(SCRAM_SECRET)
        secret = self._store.own_secret if stored is None else stored.encode()
        # SHAKE needs no HMAC: a secret before the data is a key.
        seed = hashlib.shake_256(b"%b\0%b\0%b" % (secret, mechanism.name.encode(), user.encode()))
        forms = self._forms_in(records).get(mechanism.number, _DEFAULT_FORMS)
        form = forms[0]
        if len(forms) > 1:
            chosen_by = seed.digest(_CHOOSING_BYTES)
            form = max(forms, key=lambda each: hashlib.sha256(chosen_by + repr(each).encode()).digest())
        salt = seed.digest(_CHOOSING_BYTES + (form.salt_size or _CHOOSING_BYTES))[_CHOOSING_BYTES:]
        if form.salt_size is None:
            salt = new_salt(salt)
        elif form.is_text:
            salt = salt.translate(_AS_TEXT)
        key = bytes(mechanism.size)  # no client sees what it signs: `find` says that the credential does not exist
        return Credential(salt, key, key, form.iterations)

    def _forms_in(self, records: Mapping[tuple[str, int], Any]) -> dict[int, list[_Form]]:
        """The forms of the first credentials by mechanism. The order of the records is the same on all nodes."""
        if self._forms[0] is not records:
            found: dict[int, dict[_Form, None]] = {}
            for (_, number), record in islice(records.items(), _SAMPLE):
                forms = found.setdefault(number, {})
                if len(forms) < _MAX_FORMS:
                    forms[_form_of(bytes(record.salt), record.iterations)] = None
            self._forms = records, {number: list(forms) for number, forms in found.items()}
        return self._forms[1]

    def _most_iterations(self) -> dict[int, int]:
        """By the number of each mechanism that users have; blocking, because it looks at all of them."""
        image = self._store.image()
        records = None if image is None else image.scram_credentials
        if self._most[0] is not records:
            found: dict[int, int] = {}
            for (_, number), record in ({} if records is None else records).items():
                found[number] = max(found.get(number, 0), record.iterations)
            self._most = records, found
        return self._most[1]


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
        self._user = self._header = self._client_nonce = self._nonce = self._exchanged = ""
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
        header, acts_as, bare, name, self._client_nonce, extensions = match.groups()
        self._user = _unescaped(name)
        if acts_as and _unescaped(acts_as) != self._user:
            raise AuthenticationFailed("the client asks to act as another user")
        if ",tokenauth=" in extensions:
            raise AuthenticationFailed("delegation tokens are not supported")
        self._credential, self._is_known = self._users.find(self._user, self._mechanism)
        self._header = base64.b64encode(header.encode()).decode()
        self._nonce = self._client_nonce + self._server_nonce
        salt = base64.b64encode(self._credential.salt).decode()
        first = f"r={self._nonce},s={salt},i={self._credential.iterations}"
        self._exchanged = f"{bare},{first}"
        self._next = self._on_final
        return Step(first.encode())

    def _on_final(self, text: str) -> Step:
        match = _FINAL.fullmatch(text)
        if match is None:
            raise AuthenticationFailed("the final message cannot be read")
        unproven, header, nonce, proof_text = match.groups()
        # Apache Kafka 4 compares the whole nonce too (CVE-2024-56128).
        if nonce == self._client_nonce + self._nonce:
            raise AuthenticationFailed(
                "the client repeats its nonce, probably because it uses a librdkafka before 2.6.1; it needs a newer one"
            )
        if header != self._header or not hmac.compare_digest(nonce, self._nonce):
            raise AuthenticationFailed("the final message does not belong to the first one")
        try:
            proof = base64.b64decode(proof_text, validate=True)
        except NotBase64 as error:
            raise AuthenticationFailed("the proof is not base64") from error
        mechanism, credential = self._mechanism, self._credential
        signed = f"{self._exchanged},{unproven}".encode()
        signature = mechanism.sign(credential.stored_key, signed)
        if len(proof) != len(signature):
            raise AuthenticationFailed("the proof has a wrong size")
        key = (int.from_bytes(proof, "big") ^ int.from_bytes(signature, "big")).to_bytes(mechanism.size, "big")
        is_right = hmac.compare_digest(mechanism.digest(key), credential.stored_key)
        answer = mechanism.sign(credential.server_key, signed)
        if not is_right or not self._is_known:
            raise AuthenticationFailed("a wrong password" if self._is_known else "an unknown user")
        return Step(b"v=" + base64.b64encode(answer), self._user)


def _unescaped(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=") if "=" in name else name


def _is_over(_text: str) -> Step:
    raise AuthenticationFailed("a message after the end of the exchange")

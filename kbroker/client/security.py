"""TLS and SASL of a client's connections.

`exchange` is the client's side of a SASL mechanism: a generator that yields tokens and is sent the broker's answers.
PLAIN, SCRAM, and OAUTHBEARER with a token from a file are implemented here. GSSAPI and AWS_MSK_IAM are those of
kafka-python, if it is installed.

Source  RFC 4616 (PLAIN), RFC 5802 and RFC 7677 (SCRAM), RFC 7628 (OAUTHBEARER), KIP-43, KIP-152
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import socket
import ssl
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, Final

from kbroker.client.blocking import Connection
from kbroker.config.sasl import SCRAM_MIN_ITERATIONS
from wire.errors import ErrorCode, KafkaError, check, code_of
from wire.messages.sasl_authenticate import SaslAuthenticateRequest
from wire.messages.sasl_handshake import SaslHandshakeRequest

Exchange = Generator[bytes, bytes, None]

_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_BUFFERS: Final = {"send_buffer_bytes": socket.SO_SNDBUF, "receive_buffer_bytes": socket.SO_RCVBUF}
_FILES: Final = ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_crlfile")
MAX_ITERATIONS: Final = 1_000_000


def tls_context(settings: Mapping[str, Any]) -> ssl.SSLContext | None:
    """The TLS settings of a client; None without TLS. Errors: OSError, which names the files."""
    if not settings.get("security_protocol", "PLAINTEXT").endswith("SSL"):
        return None
    try:
        return _context(settings)
    except OSError as error:
        files = [str(settings[name]) for name in _FILES if name in settings]
        raise OSError(f"the files for TLS cannot be used ({', '.join(files)}): {error.strerror or error}") from error


def _context(settings: Mapping[str, Any]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=settings.get("ssl_cafile"))
    context.check_hostname = settings.get("ssl_check_hostname", True)
    if "ssl_certfile" in settings:
        context.load_cert_chain(settings["ssl_certfile"], settings.get("ssl_keyfile"), settings.get("ssl_password"))
    if "ssl_crlfile" in settings:
        context.load_verify_locations(settings["ssl_crlfile"])
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    return context


def connect(
    address: tuple[str, int], settings: Mapping[str, Any], *, timeout_ms: int | None, tls: ssl.SSLContext | None
) -> Connection:
    """Connect to a broker, negotiate versions and authenticate.

    Errors  OSError, Malformed, UnsupportedApi; KafkaError if the broker refuses the credentials
    """
    host, port = address
    timeout_s = None if timeout_ms is None else timeout_ms / 1000
    connection = Connection(host, port, client_id=settings.get("client_id", "kbroker"), timeout_s=timeout_s, tls=tls)
    try:
        for name, option in _BUFFERS.items():
            if settings.get(name, -1) > 0:
                connection.socket.setsockopt(socket.SOL_SOCKET, option, settings[name])
        connection.negotiate()
        if settings.get("security_protocol", "PLAINTEXT").startswith("SASL_"):
            _authenticate(connection, settings, host)
    except BaseException:
        connection.close()
        raise
    return connection


def _authenticate(connection: Connection, settings: Mapping[str, Any], host: str) -> None:
    from kbroker.runtime.clocks import RealClocks  # noqa: PLC0415  (`kbroker health` rarely needs this)

    mechanism = str(settings.get("sasl_mechanism"))
    tokens = exchange(mechanism, settings, host=host, nonce=RealClocks().new_uuid().hex)
    chosen = connection.ask(SaslHandshakeRequest(mechanism=mechanism))
    if chosen.error_code:
        offered = ", ".join(chosen.mechanisms)
        raise KafkaError(code_of(chosen.error_code), f"the broker supports SASL {offered}, not {mechanism}")
    token = next(tokens)
    while True:
        answer = connection.ask(SaslAuthenticateRequest(auth_bytes=token))
        check(answer.error_code, answer.error_message or "the broker refuses the credentials")
        try:
            token = tokens.send(answer.auth_bytes)
        except StopIteration:
            return


def exchange(mechanism: str, settings: Mapping[str, Any], *, host: str, nonce: str) -> Exchange:
    """The client's side of a mechanism. Errors: KafkaError if it is unknown or lacks a setting."""
    if mechanism == "OAUTHBEARER" and "sasl_oauthbearer_token_file" in settings:
        return _oauthbearer(settings["sasl_oauthbearer_token_file"])
    if mechanism != "PLAIN" and mechanism not in _HASHES:
        return _of_kafka_python(mechanism, settings, host)
    try:
        user, password = settings["sasl_plain_username"], settings["sasl_plain_password"]
    except KeyError as error:
        raise _refusal(f"SASL {mechanism} requires a username and a password") from error
    if mechanism == "PLAIN":
        return _plain(user, password)
    return _scram(_HASHES[mechanism], user, password, nonce)


def _refusal(why: str) -> KafkaError:
    return KafkaError(ErrorCode.SASL_AUTHENTICATION_FAILED, why)


def _plain(user: str, password: str) -> Exchange:
    yield f"\0{user}\0{password}".encode()


def _oauthbearer(path: str) -> Exchange:
    try:
        token = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise _refusal(f"the token of OAUTHBEARER cannot be read from {path}: {error}") from error
    status = yield f"n,,\x01auth=Bearer {token}\x01\x01".encode()
    if status:
        yield b"\x01"  # the broker has refused the token, and waits for this before it says so


def _scram(name: str, user: str, password: str, nonce: str) -> Exchange:
    def sign(key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, name)

    first = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}".encode()
    challenge = yield b"n,," + first
    fields = _fields(challenge)
    try:
        salt, iterations = base64.b64decode(fields["s"]), int(fields["i"])
        server_nonce = fields["r"]
    except (KeyError, ValueError) as error:
        raise _refusal("the broker's SCRAM challenge cannot be read") from error
    if not server_nonce.startswith(nonce) or not SCRAM_MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        # A false broker could ask for few iterations, and then guess the password from the proof.
        raise _refusal("the broker's SCRAM challenge is invalid")
    salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, iterations)
    last = f"c=biws,r={server_nonce}".encode()
    signed = b",".join((first, challenge, last))
    key = sign(salted, b"Client Key")
    signature = sign(hashlib.new(name, key).digest(), signed)
    proof = bytes(one ^ other for one, other in zip(key, signature, strict=True))
    outcome = yield last + b",p=" + base64.b64encode(proof)
    expected = base64.b64encode(sign(sign(salted, b"Server Key"), signed)).decode()
    if _fields(outcome).get("v") != expected:
        raise _refusal("the broker does not know the password either: its SCRAM signature is wrong")


def _fields(message: bytes) -> dict[str, str]:
    return dict(field.partition("=")[::2] for field in message.decode(errors="replace").split(","))


def _of_kafka_python(mechanism: str, settings: Mapping[str, Any], host: str) -> Exchange:
    try:
        from kafka.net.sasl import get_sasl_mechanism  # noqa: PLC0415  (an optional dependency)

        client = get_sasl_mechanism(mechanism)(host=host, **settings)
    except ImportError as error:
        raise _refusal(f"SASL {mechanism} requires kafka-python: pip install 'kbroker[kafka-python]'") from error
    except (KeyError, RuntimeError, ValueError) as error:  # KafkaError of kafka-python is a RuntimeError
        raise _refusal(f"SASL {mechanism}: {error}") from error
    while not client.is_done():
        client.receive((yield client.auth_bytes()))

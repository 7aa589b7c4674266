"""Who may read the pages: clients that send the token of `kbroker.http.token`, or everybody if there is none.

A program sends `Authorization: Bearer TOKEN`. A browser asks its user for a name and a password, sends the token as the
password (with any name), and keeps it in memory until it ends. So the token is never part of a URL, and there is no
session that could be stolen.

Source: RFC 6750, RFC 7617.
"""

from __future__ import annotations

import hmac
from binascii import Error, a2b_base64
from hashlib import sha256
from typing import Final

from kbroker.config.observability import ObservabilitySettings, token_fault
from kbroker.config.values import Secret
from kbroker.runtime.ports import Disk

CHALLENGES: Final = (("WWW-Authenticate", 'Bearer realm="kbroker"'), ("WWW-Authenticate", 'Basic realm="kbroker"'))
_LARGEST_FILE: Final = 64 * 1024


class Gate:
    """Compares tokens in a time that does not depend on their contents."""

    def __init__(self, token: Secret) -> None:
        self._digest = sha256(token.reveal().encode()).digest()

    def admits(self, authorization: bytes) -> bool:
        """Whether the value of an Authorization header holds the token."""
        scheme, _, given = authorization.partition(b" ")
        if scheme.lower() == b"basic":
            try:
                given = a2b_base64(given).partition(b":")[2]
            except Error:
                return False
        elif scheme.lower() != b"bearer":
            return False
        return hmac.compare_digest(sha256(given.strip()).digest(), self._digest)


def gate_of(settings: ObservabilitySettings, disk: Disk) -> Gate | None:
    """The gate that these settings ask for. Errors: OSError, with a message for the operator."""
    token, path = settings.kbroker_http_token, settings.kbroker_http_token_file
    if path is not None:
        try:
            file = disk.open(path, writable=False)
            try:
                token = Secret(file.pread(_LARGEST_FILE, 0).decode("ascii", "replace").strip())
            finally:
                file.close()
        except OSError as error:
            raise OSError(f"cannot read kbroker.http.token.file={path}: {error.strerror or error}") from error
        if (fault := token_fault(token)) is not None:
            raise OSError(f"kbroker.http.token.file={path}: {fault}")
    return None if token is None else Gate(token)

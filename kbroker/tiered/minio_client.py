"""Requests to an S3 store: signed, with time limits and retries, and with errors classified.

One deadline holds for all requests of a call. Answers are classified in the same way for all requests:

    429, 500 and above (507: full), 408, a silent or broken connection, a wrong checksum
                      temporary: retried until the deadline, then RetriableRemoteStorageError
    401, 403, expired token
                      keys were rotated, or a clock is wrong: the credentials file is read again, and if its keys have
                      changed the request is retried; then StoreMisconfigured, because a correction needs no restart
    404 of the bucket StoreMisconfigured, and never a lost segment
    404 of an object  RemoteResourceNotFound
    416               RemoteObjectDamaged: the object is shorter than its segment
    all others        RemoteStorageError

Source  the S3 API
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeVar
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from kbroker.runtime.retrying import BackOff
from kbroker.tiered.api import (
    RemoteObjectDamaged,
    RemoteResourceNotFound,
    RemoteStorageError,
    RetriableRemoteStorageError,
    StoreMisconfigured,
)
from kbroker.tiered.minio_connections import TRANSPORT_ERRORS, Answer, Body, Connections, Deadline, Refused, parse_xml
from kbroker.tiered.minio_credentials import KeySource
from kbroker.tiered.minio_settings import MinioSettings
from kbroker.tiered.minio_signing import UNSIGNED_PAYLOAD, Address, sign

Result = TypeVar("Result")

_REFUSED_KEYS: Final = frozenset({"ExpiredToken", "InvalidToken", "TokenRefreshRequired"})
"""Errors with status 400 that other keys correct."""

_MISCONFIGURED: Final = frozenset({"AuthorizationHeaderMalformed", "PermanentRedirect"})  # mostly a wrong region

_LONGEST_MESSAGE: Final = 300
_NO_NAMES: Final[Mapping[str, str]] = {}
_DAMAGED_ON_THE_WAY = frozenset(
    {"BadDigest", "IncompleteBody", "InvalidDigest", "MalformedXML", "OperationAborted", "RequestTimeout"}
    | {"XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"}
)


def checksum_text(value: int) -> str:
    """A CRC-32C in S3's format: base64 of its four bytes, big-endian."""
    return base64.b64encode(value.to_bytes(4, "big")).decode()


class StoredState(NamedTuple):
    """The store's description of an object. Shape: checksum is a CRC-32C in S3's format, None if there is none."""

    size: int
    checksum: str | None


class Unsure(Exception):
    """The answer was a success, but the result is not the expected one."""


class Client:
    """Access to one bucket. Its requests are made within `attempt`.

    Errors  of attempt: RemoteStorageError, as described in the module's docstring; of requests: Refused and
            TRANSPORT_ERRORS
    """

    def __init__(
        self, settings: MinioSettings, keys: KeySource, *, clock: Callable[[], int], wall_clock: Callable[[], int]
    ) -> None:
        self._settings, self._keys, self._clock, self._wall_clock = settings, keys, clock, wall_clock
        self._address = Address.of(settings)
        self._connections = Connections(self._address.host, settings)
        self._closed = threading.Event()

    def request(
        self,
        deadline: Deadline,
        method: str,
        name: str = "",
        *,
        query: Mapping[str, str] = _NO_NAMES,
        headers: Mapping[str, str] = _NO_NAMES,
        body: Body | bytes = b"",
    ) -> Answer:
        """Make one request about an object, or about the bucket. The body of its answer is still to be read."""
        sent = body if isinstance(body, Body) else Body(body, sign=True)
        # The store verifies the CRC-32C of an object. Its header is signed, so the body needs no signature of its own.
        payload = sent.sha256 or UNSIGNED_PAYLOAD
        path, encoded = self._address.target(name, query)
        keys = self._keys.keys()
        signed = sign(
            (method, path, encoded),
            {**headers, "host": self._address.host, "x-amz-content-sha256": payload},
            keys,
            region=self._settings.region,
            timestamp_ms=self._wall_clock(),
        )
        target = f"{path}?{encoded}" if encoded else path
        try:
            return self._connections.request(method, target, signed, sent, deadline)
        except Refused as error:
            error.keys = keys
            raise

    def deadline(self, what: str, *, size: int = 0) -> Deadline:
        """The deadline of a call that starts now and moves `size` bytes."""
        moving_ms = size * 1000 / self._settings.call_min_bytes_per_second
        return Deadline(self._clock, self._settings.call_timeout_ms + moving_ms, what)

    def attempt(self, deadline: Deadline, operation: Callable[[], Result]) -> Result:
        """Run one or several requests, with retries until success, a permanent error, or the deadline."""
        back_off = BackOff(self._settings.retry_backoff_ms)
        for left in range(self._settings.retries, -1, -1):
            if self._closed.is_set():
                raise RemoteStorageError(f"{deadline.what}: closed")
            deadline.seconds_left()
            try:
                return operation()
            except Refused as error:
                failure, again = self._judge(deadline, error)
                if not (again and left):
                    raise failure from None
            except TRANSPORT_ERRORS as error:
                deadline.seconds_left()
                if not left:
                    message = self._message(deadline, str(error) or type(error).__name__)
                    raise RetriableRemoteStorageError(message) from None
            except Unsure as error:
                if not left:
                    raise RetriableRemoteStorageError(str(error)) from None
            delay_ms = back_off.next_ms(self._settings.retry_backoff_max_ms)
            self._closed.wait(min(delay_ms / 1000, deadline.seconds_left()))
        raise AssertionError("the last attempt returns or raises")

    def unsure(self, deadline: Deadline, why: str) -> Unsure:
        """The exception for an answer that is impossible: it is retried like a broken connection."""
        return Unsure(self._message(deadline, why))

    def xml(self, deadline: Deadline, data: bytes) -> ElementTree.Element:
        """Parse an answer. Errors: Unsure."""
        try:
            return parse_xml(data)
        except ElementTree.ParseError as error:
            raise self.unsure(deadline, f"invalid XML: {error}") from None

    def _judge(self, deadline: Deadline, error: Refused) -> tuple[RemoteStorageError, bool]:
        """The error for a refusal by the store, and whether to retry."""
        status = error.status
        message = self._message(deadline, f"answered {status} {error.reason}")
        if error.code == "NoSuchBucket":
            return self._judge_missing_bucket(deadline)
        if status in {401, 403} or error.code in _REFUSED_KEYS:
            failure = StoreMisconfigured(f"{message} (keys from {self._keys.origin})")
            return failure, error.keys is not None and self._keys.read_again() != error.keys
        if error.code in _MISCONFIGURED:
            return StoreMisconfigured(f"{message} (rsm.config.region)"), False
        if status == 404:
            return RemoteResourceNotFound(message), False
        if status == 416:  # no caller requests bytes beyond the segment, so the object is shorter than its segment
            return RemoteObjectDamaged(message), False
        if status in {408, 429} or status >= 500 or error.code in _DAMAGED_ON_THE_WAY:
            return RetriableRemoteStorageError(message), True
        return RemoteStorageError(message), False

    def _judge_missing_bucket(self, deadline: Deadline) -> tuple[RemoteStorageError, bool]:
        bucket = self._settings.bucket
        message = self._message(
            deadline, f"there is no bucket {bucket!r}: create it, or set rsm.config.bucket.create=true"
        )
        if not self._settings.bucket_create:
            return StoreMisconfigured(message), False
        region, where = self._settings.region, ""
        if region != "us-east-1":  # which is the default, and must not be named
            where = f"<LocationConstraint>{escape(region)}</LocationConstraint>"
            where = f"<CreateBucketConfiguration>{where}</CreateBucketConfiguration>"
        try:
            self.request(deadline, "PUT", body=where.encode()).read(deadline)
        except (Refused, *TRANSPORT_ERRORS) as error:
            code = error.code if isinstance(error, Refused) else ""
            if code not in {"BucketAlreadyOwnedByYou", "BucketAlreadyExists"}:
                return StoreMisconfigured(f"{message} (creating it failed: {code or type(error).__name__})"), True
        return RetriableRemoteStorageError(message), True

    def _message(self, deadline: Deadline, what: str) -> str:
        """A message of limited length, with printable characters only and without keys."""
        text = self._keys.hide_in(f"{deadline.what}: {self._settings.endpoint}: {what}")
        return "".join(character if character.isprintable() else "?" for character in text[:_LONGEST_MESSAGE])

    def state(self, name: str, deadline: Deadline) -> StoredState | None:
        """One HEAD request; None if there is no such object."""
        try:
            answer = self.request(deadline, "HEAD", name, headers={"x-amz-checksum-mode": "ENABLED"})
        except Refused as error:
            if error.status == 404:
                return None
            raise
        size = answer.headers.get("content-length", "")
        return StoredState(int(size) if size.isdecimal() else -1, answer.headers.get("x-amz-checksum-crc32c"))

    def expect(self, name: str, sent: StoredState, deadline: Deadline) -> None:
        """Check that an object is stored as it was sent. Errors: Unsure, if not."""
        found = self.state(name, deadline)
        if found is None or (found != sent and found.checksum is not None) or found.size != sent.size:
            raise self.unsure(deadline, f"sent {sent}, but the store has {found}")
        if found.checksum is None:
            raise RemoteStorageError(self._message(deadline, "keeps no CRC-32C of what it stores"))

    def close(self) -> None:
        """May be called repeatedly; running calls end with their next step."""
        self._closed.set()
        self._connections.close()

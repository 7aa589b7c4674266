"""Requests to an S3 store with time limits: connections, deadlines, retries, and the classification of errors.

The `minio` package builds, signs and parses requests. This module replaces its defaults (three threads, five tries, 300
seconds), which do not suit a broker: its own bounded connection pool, no retries in urllib3, one deadline per call, and
bodies that are read from their file while they are sent.

Answers are classified in the same way for all requests:

    429, 500 and above (507: full), 408, a silent or broken connection, a wrong checksum
                      temporary: retried until the deadline, then RetriableRemoteStorageError
    401, 403          keys were rotated, or a clock is wrong: the credentials file is read again, and if its keys have
                      changed the request is retried; then StoreMisconfigured, because a correction needs no restart
    404 of the bucket StoreMisconfigured, and never a lost segment
    404 of an object  RemoteResourceNotFound
    416               RemoteObjectDamaged: the object is shorter than its segment
    all others        RemoteStorageError

Source  the S3 API; minio-py 7.2
"""

from __future__ import annotations

import base64
import re
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NamedTuple, TypeVar
from xml.etree import ElementTree

import crc32c
import urllib3
from minio import Minio
from minio.credentials.credentials import Credentials
from minio.credentials.providers import Provider
from minio.error import MinioException, S3Error
from urllib3.response import BaseHTTPResponse

from kbroker.runtime.ports import File
from kbroker.tiered.api import (
    RemoteObjectDamaged,
    RemoteResourceNotFound,
    RemoteStorageError,
    RetriableRemoteStorageError,
    StoreMisconfigured,
)
from kbroker.tiered.minio_credentials import KeySource
from kbroker.tiered.minio_settings import MinioSettings

Result = TypeVar("Result")

BLOCK_BYTES = 1 << 20
_LARGEST_ANSWER = 64 << 20
_LONGEST_MESSAGE = 300
_TRANSPORT = (urllib3.exceptions.HTTPError, OSError)
_UNREADABLE = (ElementTree.ParseError, ValueError)  # the package raises them for malformed or unexpected XML
_DAMAGED_ON_THE_WAY = frozenset(
    {"BadDigest", "IncompleteBody", "InvalidDigest", "MalformedXML", "OperationAborted", "RequestTimeout"}
    | {"XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"}
)
_ERROR = re.compile(rb"\s*(<\?xml[^>]*>)?\s*<Error[\s>]")


class Deadline:
    """The end of one call. Source of time: a monotonic clock in nanoseconds."""

    __slots__ = ("_clock", "_end_ns", "what")

    def __init__(self, clock: Callable[[], int], milliseconds: float, what: str) -> None:
        self._clock, self._end_ns, self.what = clock, clock() + int(milliseconds * 1e6), what

    def seconds_left(self) -> float:
        """Always positive. Errors: RetriableRemoteStorageError after the deadline."""
        left = (self._end_ns - self._clock()) / 1e9
        if left <= 0:
            raise RetriableRemoteStorageError(f"{self.what}: took longer than allowed")
        return left


class Body:
    """A request body that can be sent repeatedly: it is read block by block each time and never held as a whole.

    Errors  RemoteStorageError for a file that cannot be read, or has become shorter
    """

    def __init__(self, source: File | bytes, position: int = 0, size: int | None = None, *, sign: bool = False) -> None:
        self._source, self._position = source, position
        self._size = len(source) if isinstance(source, bytes) else source.size() if size is None else size
        checksum = 0
        digest = _sha256() if sign else None
        for block in self:
            checksum = crc32c.crc32c(block, checksum)
            if digest is not None:
                digest.update(block)
        self.crc32c: int = checksum
        self.sha256: str | None = None if digest is None else digest.hexdigest()

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        if isinstance(self._source, bytes):
            yield self._source
            return
        done = 0
        while done < self._size:
            wanted = min(BLOCK_BYTES, self._size - done)
            try:
                block = self._source.pread(wanted, self._position + done)
            except OSError as error:
                raise RemoteStorageError(f"{self._source.path} cannot be read: {error}") from error
            if len(block) < wanted:
                raise RemoteStorageError(f"{self._source.path} is shorter than {self._position + self._size} bytes")
            yield block
            done += wanted


def _sha256() -> Any:
    import hashlib  # noqa: PLC0415  (the minio package imports it anyway)

    return hashlib.sha256()


def checksum_text(value: int) -> str:
    """A CRC-32C in S3's format: base64 of its four bytes, big-endian."""
    return base64.b64encode(value.to_bytes(4, "big")).decode()


class StoredState(NamedTuple):
    """The store's description of an object. Shape: checksum is a CRC-32C in S3's format, None if there is none."""

    size: int
    checksum: str | None


class _Current(threading.local):
    """The state of the calling thread's request."""

    deadline: Deadline | None = None
    status: int = 0


class _Connections(urllib3.PoolManager):
    """The connection pool. A caller sets its deadline with `until`; the pool does not retry."""

    def __init__(self, settings: MinioSettings) -> None:
        verify: dict[str, Any] = {}
        if settings.secure:
            verify["ssl_context"] = ssl.create_default_context(cafile=settings.ca_file or None)
        super().__init__(num_pools=4, maxsize=settings.connections_max, block=True, retries=False, **verify)
        self._connect_s, self._read_s = settings.connect_timeout_ms / 1000, settings.read_timeout_ms / 1000
        self.current = _Current()

    @contextmanager
    def until(self, deadline: Deadline) -> Iterator[None]:
        self.current.deadline, self.current.status = deadline, 0
        try:
            yield
        finally:
            self.current.deadline = None

    def urlopen(  # type: ignore[override]  # as urllib3's own pool manager overrides it
        self, method: str, url: str, redirect: bool = False, **options: Any
    ) -> BaseHTTPResponse:
        del redirect  # a request that is signed for one host is invalid for another
        deadline = self.current.deadline
        assert deadline is not None, "requests are made within `until`"
        left = deadline.seconds_left()
        whole = options.pop("preload_content", True)
        body = options.pop("body", None)
        response = super().urlopen(
            method,
            url,
            redirect=False,
            body=_paced(body, deadline) if isinstance(body, Body) else body,
            timeout=urllib3.Timeout(connect=min(self._connect_s, left), read=min(self._read_s, left)),
            pool_timeout=left,
            preload_content=False,
            decode_content=False,
            **options,
        )
        if whole or response.status >= 300:
            response = _read_whole(response, method, deadline)
        self.current.status = response.status
        return response


def _paced(body: Body, deadline: Deadline) -> Iterator[bytes]:
    for block in body:
        deadline.seconds_left()
        yield block


def discard(response: BaseHTTPResponse) -> None:
    """Discard the unread rest: closes the connection and frees its place in the pool."""
    response.close()
    response.release_conn()


def _read_whole(response: BaseHTTPResponse, method: str, deadline: Deadline) -> BaseHTTPResponse:
    """The answer with its body in memory. The deadline is checked after each piece, so a slow sender cannot stall."""
    try:
        data = bytearray()
        while piece := response.read1(BLOCK_BYTES):
            deadline.seconds_left()
            data += piece
            if len(data) > _LARGEST_ANSWER:
                raise RemoteStorageError(f"{deadline.what}: an answer of more than {_LARGEST_ANSWER} bytes")
    except BaseException:
        discard(response)
        raise
    response.release_conn()
    return urllib3.HTTPResponse(
        body=bytes(data),
        headers=response.headers,
        # S3 starts some answers with a success status and reports the error in the body.
        status=500 if response.status < 300 and _ERROR.match(data) else response.status,
        reason=response.reason,
        request_method=method,
        enforce_content_length=False,
    )


class _Provider(Provider):
    def __init__(self, keys: KeySource) -> None:
        self._keys = keys

    def retrieve(self) -> Credentials:
        keys = self._keys.keys()
        return Credentials(keys.access_key, keys.secret_key, keys.session_token)


class _Minio(Minio):
    """The package's client, extended to send a `Body`."""

    def _build_headers(
        self, host: str, headers: Any = None, body: Any = None, creds: Credentials | None = None
    ) -> tuple[Any, datetime]:
        if not isinstance(body, Body):
            return super()._build_headers(host, headers, body, creds)
        built, date = super()._build_headers(host, headers, None, creds)
        built["Content-Length"] = str(len(body))
        # The store verifies the CRC-32C, whose header is signed, so the body needs no signature of its own.
        built["x-amz-content-sha256"] = body.sha256 or "UNSIGNED-PAYLOAD"
        return built, date


class Unsure(Exception):
    """The answer was a success, but the result is not the expected one."""


class Client:
    """Access to one bucket.

    Errors  RemoteStorageError, as described in the module's docstring, from everything but `close`
    """

    def __init__(self, settings: MinioSettings, keys: KeySource, *, clock: Callable[[], int]) -> None:
        self._settings, self._keys, self._clock = settings, keys, clock
        self._connections = _Connections(settings)
        self._closed = threading.Event()
        self.store = _Minio(
            settings.endpoint,
            secure=settings.secure,
            region=settings.region,
            http_client=self._connections,
            credentials=_Provider(keys),
        )

    def deadline(self, what: str, *, size: int = 0) -> Deadline:
        """The deadline of a call that starts now and moves `size` bytes."""
        moving_ms = size * 1000 / self._settings.call_min_bytes_per_second
        return Deadline(self._clock, self._settings.call_timeout_ms + moving_ms, what)

    def attempt(self, deadline: Deadline, operation: Callable[[], Result]) -> Result:
        """Run one or several requests, with retries until success, a permanent error, or the deadline."""
        backoff_ms = self._settings.retry_backoff_ms
        for left in range(self._settings.retries, -1, -1):
            if self._closed.is_set():
                raise RemoteStorageError(f"{deadline.what}: closed")
            deadline.seconds_left()
            try:
                with self._connections.until(deadline):
                    return operation()
            except (MinioException, *_UNREADABLE) as error:
                failure, again = self._judge(deadline, error)
                if not (again and left):
                    raise failure from None  # the package's errors contain answers, which may repeat the request
            except _TRANSPORT as error:
                deadline.seconds_left()
                if not left:
                    message = self._message(deadline, str(error) or type(error).__name__)
                    raise RetriableRemoteStorageError(message) from None
            except Unsure as error:
                if not left:
                    raise RetriableRemoteStorageError(str(error)) from None
            self._closed.wait(min(backoff_ms / 1000, deadline.seconds_left()))
            backoff_ms = min(2 * backoff_ms, self._settings.retry_backoff_max_ms)
        raise AssertionError("the last attempt returns or raises")

    def unsure(self, deadline: Deadline, why: str) -> Unsure:
        """The exception for an answer that is impossible: it is retried like a broken connection."""
        return Unsure(self._message(deadline, why))

    def _judge(self, deadline: Deadline, error: Exception) -> tuple[RemoteStorageError, bool]:
        """The error for an answer of the store, and whether to retry."""
        status = error.response.status if isinstance(error, S3Error) else self._connections.current.status
        if not status:
            raise error  # the store did not answer: it is a bug in this code
        code = (error.code or "") if isinstance(error, S3Error) else ""
        reason = f"{code}: {error.message}" if isinstance(error, S3Error) else type(error).__name__
        message = self._message(deadline, f"answered {status} {reason}")
        if code == "NoSuchBucket":
            return self._judge_missing_bucket(deadline)
        if status in {401, 403}:
            return StoreMisconfigured(f"{message} (keys from {self._keys.origin})"), self._keys.read_again()
        if status == 404:
            return RemoteResourceNotFound(message), False
        if status == 416:  # no caller requests bytes beyond the segment, so the object is shorter than its segment
            return RemoteObjectDamaged(message), False
        if status in {408, 429} or status >= 500 or status < 300 or code in _DAMAGED_ON_THE_WAY:
            return RetriableRemoteStorageError(message), True
        return RemoteStorageError(message), False

    def _judge_missing_bucket(self, deadline: Deadline) -> tuple[RemoteStorageError, bool]:
        bucket = self._settings.bucket
        message = self._message(
            deadline, f"there is no bucket {bucket!r}: create it, or set rsm.config.bucket.create=true"
        )
        if not self._settings.bucket_create:
            return StoreMisconfigured(message), False
        try:
            with self._connections.until(deadline):
                self.store.make_bucket(bucket)
        except (MinioException, *_UNREADABLE, *_TRANSPORT) as error:
            code = getattr(error, "code", None)
            if code not in {"BucketAlreadyOwnedByYou", "BucketAlreadyExists"}:
                return StoreMisconfigured(f"{message} (creating it failed: {code or type(error).__name__})"), True
        return RetriableRemoteStorageError(message), True

    def _message(self, deadline: Deadline, what: str) -> str:
        """A message of limited length, with printable characters only and without keys."""
        text = self._keys.hide_in(f"{deadline.what}: {self._settings.endpoint}: {what}")
        return "".join(character if character.isprintable() else "?" for character in text[:_LONGEST_MESSAGE])

    def state(self, name: str) -> StoredState | None:
        """One HEAD request, within `attempt`; None if there is no such object. Errors: the package's."""
        try:
            found = self.store.stat_object(
                self._settings.bucket, name, extra_headers={"x-amz-checksum-mode": "ENABLED"}
            )
        except S3Error as error:
            if error.code == "NoSuchKey":
                return None
            raise
        headers: Mapping[str, str] = found.metadata or {}
        return StoredState(found.size or 0, headers.get("x-amz-checksum-crc32c"))

    def expect(self, name: str, sent: StoredState, deadline: Deadline) -> None:
        """Check that an object is stored as it was sent. Errors: Unsure, if not; the package's."""
        found = self.state(name)
        if found is None or (found != sent and found.checksum is not None) or found.size != sent.size:
            raise self.unsure(deadline, f"sent {sent}, but the store has {found}")
        if found.checksum is None:
            raise RemoteStorageError(self._message(deadline, "keeps no CRC-32C of what it stores"))

    def close(self) -> None:
        """May be called repeatedly; running calls end with their next step."""
        self._closed.set()
        self._connections.clear()

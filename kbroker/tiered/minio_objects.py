"""The objects of one bucket: verified writes and verified reads."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple
from xml.etree import ElementTree

from crc32c import crc32c
from minio.deleteobjects import DeleteObject
from minio.error import MinioException, S3Error
from urllib3.exceptions import HTTPError
from urllib3.response import BaseHTTPResponse

from kbroker.runtime.ports import File
from kbroker.tiered.api import (
    RemoteObjectDamaged,
    RemoteResourceNotFound,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from kbroker.tiered.layout import StoredFile
from kbroker.tiered.minio_client import (
    BLOCK_BYTES,
    Body,
    Client,
    Deadline,
    StoredState,
    Unsure,
    checksum_text,
    discard,
)
from kbroker.tiered.minio_credentials import KeySource
from kbroker.tiered.minio_receiving import receive_into
from kbroker.tiered.minio_settings import MinioSettings

_CONTENT = "application/octet-stream"


class ListedObject(NamedTuple):
    """Shape: name is without the prefix. Units: size in bytes, modified_ms wall time."""

    name: str
    size: int
    modified_ms: int


class Objects:
    """Names are relative to the prefix. Errors: those of `kbroker.tiered.minio_client`, from everything but close."""

    def __init__(self, settings: MinioSettings, keys: KeySource, *, clock: Callable[[], int]) -> None:
        self._settings, self._bucket = settings, settings.bucket
        self._prefix = f"{settings.prefix}/" if settings.prefix else ""
        self.client = Client(settings, keys, clock=clock)
        self.deadline = self.client.deadline

    def put(self, name: str, source: File | bytes, deadline: Deadline) -> Body:
        """Store one object with one PUT and one HEAD request. Returns its body."""
        body = Body(source, sign=self._settings.sign_payload)
        full_name, checksum = self._prefix + name, checksum_text(body.crc32c)

        def store() -> None:
            headers = {"Content-Type": _CONTENT, "x-amz-checksum-crc32c": checksum}
            self.client.store._put_object(self._bucket, full_name, body, headers)  # type: ignore[arg-type]  # a Body
            self.client.expect(full_name, StoredState(len(body), checksum), deadline)

        self.client.attempt(deadline, store)
        return body

    def upload(self, name: str, source: File, deadline: Deadline) -> Upload:
        """Start to store an object in parts."""
        return Upload(self.client, self._settings, self._prefix + name, source, deadline)

    def read(self, name: str, start: int, end: int, size: int) -> io.RawIOBase:
        """A stream of the bytes from `start` to `end`, inclusive, of an object of `size` bytes."""
        return RangeStream(self.client, self._bucket, self._prefix + name, (start, end), size)

    def read_whole(self, name: str, stored: Callable[[bytes], StoredFile | None], described_by: str) -> bytes:
        """A whole small object, verified against the checksum that the store keeps.

        The store has no checksum of objects that another tool wrote, for example into a copied bucket. Then `stored`
        extracts the expected size and checksum from the object `described_by`.
        Errors  RemoteStorageError, not retriable, if neither checksum confirms the object
        """
        deadline = self.client.deadline(f"reading {name}")
        is_another = False

        def read() -> bytes:
            nonlocal is_another
            is_another = False
            data, checksum = self._whole(name, deadline)
            if checksum is None:
                known = self._known(described_by, stored, deadline)
                if known == StoredFile(len(data), crc32c(data)):
                    return data
                is_another = True
                raise self.client.unsure(deadline, f"{len(data)} bytes without a checksum, expected {known}")
            if checksum != checksum_text(crc32c(data)):
                raise self.client.unsure(deadline, f"{len(data)} bytes that do not fit their checksum {checksum}")
            return data

        try:
            return self.client.attempt(deadline, read)
        except RetriableRemoteStorageError as error:
            if is_another:
                raise RemoteStorageError(str(error)) from None
            raise

    def read_alone(self, name: str) -> bytes:
        """A whole small object that no other object describes, verified against the store's checksum if it has one."""
        deadline = self.client.deadline(f"reading {name}")

        def read() -> bytes:
            data, checksum = self._whole(name, deadline)
            if checksum is not None and checksum != checksum_text(crc32c(data)):
                raise self.client.unsure(deadline, f"{len(data)} bytes that do not fit their checksum {checksum}")
            return data

        return self.client.attempt(deadline, read)

    def _known(self, name: str, stored: Callable[[bytes], StoredFile | None], deadline: Deadline) -> StoredFile | None:
        """The size and checksum that another object gives, within `attempt`; None if it gives none."""
        try:
            return stored(self._whole(name, deadline)[0])
        except S3Error as error:
            if error.code == "NoSuchKey":
                return None
            raise

    def _whole(self, name: str, deadline: Deadline) -> tuple[bytes, str | None]:
        """A whole object, and its checksum if the store has one; within `attempt`. Errors: the package's."""
        response = self.client.store.get_object(
            self._bucket, self._prefix + name, request_headers={"x-amz-checksum-mode": "ENABLED"}
        )
        return _rest(response, deadline), response.headers.get("x-amz-checksum-crc32c")

    def abort_uploads(self, name: str, deadline: Deadline) -> None:
        """Abort the incomplete uploads of this name."""
        full_name = self._prefix + name

        def abort() -> None:
            found = self.client.store._list_multipart_uploads(self._bucket, prefix=full_name)
            for upload in found.uploads:
                if upload.object_name == full_name and upload.upload_id:
                    self.client.store._abort_multipart_upload(self._bucket, full_name, upload.upload_id)

        with suppress(RemoteResourceNotFound):  # another process aborted it after it was listed
            self.client.attempt(deadline, abort)

    def delete(self, names: Sequence[str], deadline: Deadline) -> None:
        """Remove objects; missing ones are no error."""
        asked = [DeleteObject(self._prefix + name) for name in names]

        def delete() -> None:
            for error in self.client.store.remove_objects(self._bucket, asked):  # 1000 names a request at most
                if error.code != "NoSuchKey":
                    raise self.client.unsure(deadline, f"{error.name}: {error.code}: {error.message}")

        self.client.attempt(deadline, delete)

    @staticmethod
    def checksum(source: File) -> int:
        """The CRC-32C of a file."""
        return Body(source).crc32c

    def listed(self) -> Iterator[ListedObject]:
        """All objects below the prefix, by name; one request per page."""
        after = ""
        while True:
            deadline = self.client.deadline("listing")
            page = self.client.attempt(deadline, lambda after=after: self._page(after))  # type: ignore[misc]
            yield from page
            if not page:
                return
            after = self._prefix + page[-1].name

    def check(self) -> None:
        """List at most one name, to check endpoint, keys and bucket."""
        self.client.attempt(self.client.deadline("checking the store"), lambda: self._page("", 1))

    def _page(self, after: str, size: int = 1000) -> list[ListedObject]:
        found = self.client.store._list_objects(self._bucket, prefix=self._prefix, start_after=after, max_keys=size)
        page = []
        for stored in islice(found, size):
            name, modified = stored.object_name or "", stored.last_modified
            modified_ms = 0 if modified is None else int(modified.timestamp() * 1000)
            page.append(ListedObject(name.removeprefix(self._prefix), stored.size or 0, modified_ms))
        return page

    def close(self) -> None:
        """May be called repeatedly."""
        self.client.close()


class Upload:
    """An object that is stored in parts. The parts may be sent in any order and in parallel; then call `complete`.

    Invariant  the checksum of an object in parts is the CRC-32C of its parts' CRC-32Cs, followed by their number
    """

    def __init__(self, client: Client, settings: MinioSettings, name: str, source: File, deadline: Deadline) -> None:
        self._client, self._settings, self._name = client, settings, name
        self._source, self._deadline, self._size = source, deadline, source.size()
        self._part_size = settings.part_size(self._size)
        self.parts = range(-(-self._size // self._part_size))
        self._sent: dict[int, tuple[str, int]] = {}
        headers: dict[str, Any] = {"Content-Type": _CONTENT, "x-amz-checksum-algorithm": "CRC32C"}
        self._id: str = client.attempt(
            deadline, lambda: client.store._create_multipart_upload(settings.bucket, name, dict(headers))
        )

    def send(self, part: int) -> None:
        """Store the part with this number, one of `parts`."""
        position = part * self._part_size
        size = min(self._part_size, self._size - position)
        body = Body(self._source, position, size, sign=self._settings.sign_payload)

        def store() -> str:
            headers: dict[str, Any] = {"x-amz-checksum-crc32c": checksum_text(body.crc32c)}
            return self._client.store._upload_part(
                self._settings.bucket,
                self._name,
                body,  # type: ignore[arg-type]  # a Body
                headers,
                self._id,
                part + 1,
            )

        self._sent[part] = (self._client.attempt(self._deadline, store), body.crc32c)

    def complete(self) -> None:
        """Assemble the object from its parts. A HEAD request decides about success: replies get lost, and some errors
        look like a success.
        """
        checksums = [self._sent[part][1] for part in self.parts]
        whole = checksum_text(crc32c(b"".join(value.to_bytes(4, "big") for value in checksums)))
        wanted = StoredState(self._size, f"{whole}-{len(checksums)}")

        def complete() -> None:
            failure: Exception | None = None
            try:
                self._ask_to_complete()
            except (MinioException, HTTPError, OSError) as error:
                failure = error
            try:
                self._client.expect(self._name, wanted, self._deadline)
            except Unsure:
                if failure is None:
                    raise
                raise failure from None

        self._client.attempt(self._deadline, complete)

    def _ask_to_complete(self) -> None:
        root = ElementTree.Element("CompleteMultipartUpload", xmlns="http://s3.amazonaws.com/doc/2006-03-01/")
        for part in self.parts:
            etag, checksum = self._sent[part]
            entry = ElementTree.SubElement(root, "Part")
            ElementTree.SubElement(entry, "PartNumber").text = str(part + 1)
            ElementTree.SubElement(entry, "ETag").text = f'"{etag}"'
            ElementTree.SubElement(entry, "ChecksumCRC32C").text = checksum_text(checksum)
        self._client.store._execute(
            "POST",
            self._settings.bucket,
            self._name,
            body=ElementTree.tostring(root),
            headers={"Content-Type": "application/xml"},
            query_params={"uploadId": self._id},
        )


def _rest(response: BaseHTTPResponse, deadline: Deadline) -> bytes:
    """The unread rest of an answer; afterwards its connection is free."""
    try:
        pieces = []
        while piece := response.read1(BLOCK_BYTES):
            deadline.seconds_left()
            pieces.append(piece)
    except BaseException:
        discard(response)
        raise
    response.release_conn()
    return b"".join(pieces)


class RangeStream(io.RawIOBase):
    """A range of an object as a stream. If the connection breaks, the rest is requested again.

    Errors  RemoteStorageError from every read
    """

    def __init__(self, client: Client, bucket: str, name: str, span: tuple[int, int], size: int) -> None:
        super().__init__()
        self._client, self._bucket, self._name = client, bucket, name
        self._position, self._end, self._size = span[0], span[1], size
        self._deadline = client.deadline(f"reading {name}", size=span[1] - span[0] + 1)
        self._response: BaseHTTPResponse | None = client.attempt(self._deadline, self._ask)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self.fill(memoryview(buffer).cast("B"))

    def fill(self, view: memoryview) -> int:
        """Fill the view directly from the connection; fewer bytes only at the end of the range."""
        if self.closed:
            raise ValueError("read of a closed stream")
        start = self._position
        end = min(self._end + 1, start + len(view))
        while self._position < end:
            self._client.attempt(self._deadline, lambda: self._read_on(end, view[self._position - start : end - start]))
        if self._position > self._end and self._response is not None:
            self._response.release_conn()
            self._response = None
        return end - start

    def read(self, size: int | None = -1) -> bytes:
        """`size` bytes, fewer only at the end of the range; all the rest for -1."""
        left = self._end + 1 - self._position
        buffer = bytearray(left if size is None or size < 0 else min(size, left))
        self.fill(memoryview(buffer))
        return bytes(buffer)

    def readall(self) -> bytes:
        return self.read()

    def _read_on(self, end: int, view: memoryview) -> None:
        """Read up to `end`, or as far as possible. Only a request that returned no bytes counts as failed."""
        response = self._response or self._ask()
        self._response = None
        begin = self._position
        try:
            while self._position < end:
                received = receive_into(response, view[self._position - begin :], self._deadline)
                if not received:
                    raise self._client.unsure(self._deadline, f"ended {self._end + 1 - self._position} bytes early")
                self._position += received
        except (Unsure, HTTPError, OSError):
            discard(response)
            if self._position == begin:
                raise
            return
        except BaseException:
            discard(response)
            raise
        self._response = response

    def _ask(self) -> BaseHTTPResponse:
        """Request the rest of the range. Errors: the package's, and those of `Client.unsure`."""
        headers: dict[str, Any] = {"Range": f"bytes={self._position}-{self._end}"}
        response = self._client.store.get_object(self._bucket, self._name, request_headers=headers)
        content_range = response.headers.get("content-range", "")
        length = response.headers.get("content-length", "")
        wanted = f"bytes {self._position}-{self._end}/{self._size}"
        if (content_range, length) == (wanted, str(self._end + 1 - self._position)):
            return response
        discard(response)
        whole = content_range.rpartition("/")[2]
        if whole.isdecimal() and int(whole) != self._size:
            raise RemoteObjectDamaged(f"{self._deadline.what}: the object has {whole} bytes and not {self._size}")
        raise self._client.unsure(
            self._deadline,
            f"asked for {headers['Range']}, answered {response.status} {content_range!r}, {length!r} bytes",
        )

    def close(self) -> None:
        if not self.closed and self._response is not None:
            discard(self._response)
            self._response = None
        super().close()

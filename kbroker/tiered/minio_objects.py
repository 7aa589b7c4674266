"""The objects of one bucket: verified writes and verified reads."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final
from urllib.parse import unquote_plus
from xml.etree import ElementTree

from kbroker.runtime.ports import File
from kbroker.tiered.api import (
    RemoteObjectDamaged,
    RemoteStorageError,
    RetriableRemoteStorageError,
    StoredObject,
)
from kbroker.tiered.layout import StoredFile, stored_object
from kbroker.tiered.minio_client import Client, StoredState, Unsure, checksum_text
from kbroker.tiered.minio_connections import TRANSPORT_ERRORS, Answer, Body, Deadline, Refused
from kbroker.tiered.minio_credentials import KeySource
from kbroker.tiered.minio_settings import MinioSettings
from kbroker.tiered.streams import RangeReader
from wire.crc32c import crc32c

_CONTENT: Final = {"content-type": "application/octet-stream"}
_XML: Final = {"content-type": "application/xml"}
_NAMESPACE: Final = "http://s3.amazonaws.com/doc/2006-03-01/"


class Objects:
    """Names are relative to the prefix. Errors: those of `kbroker.tiered.minio_client`, from everything but close."""

    def __init__(
        self, settings: MinioSettings, keys: KeySource, *, clock: Callable[[], int], wall_clock: Callable[[], int]
    ) -> None:
        self.settings = settings
        self._prefix = f"{settings.prefix}/" if settings.prefix else ""
        self.client = Client(settings, keys, clock=clock, wall_clock=wall_clock)
        self.deadline = self.client.deadline

    def put(self, name: str, source: File | bytes, deadline: Deadline) -> Body:
        """Store one object with one PUT and one HEAD request. Returns its body."""
        body = Body(source, sign=self.settings.sign_payload)
        full_name, checksum = self._prefix + name, checksum_text(body.crc32c)

        def store() -> None:
            headers = {**_CONTENT, "x-amz-checksum-crc32c": checksum}
            self.client.request(deadline, "PUT", full_name, headers=headers, body=body).read(deadline)
            self.client.expect(full_name, StoredState(len(body), checksum), deadline)

        self.client.attempt(deadline, store)
        return body

    def upload(self, name: str, source: File, deadline: Deadline) -> Upload:
        """Start to store an object in parts."""
        return Upload(self.client, self.settings, self._prefix + name, source, deadline)

    def read(self, name: str, start: int, end: int, size: int) -> RangeStream:
        """A stream of the bytes from `start` to `end`, inclusive, of an object of `size` bytes."""
        return RangeStream(self.client, self._prefix + name, (start, end), size)

    def read_whole(
        self, name: str, described_by: tuple[str, Callable[[bytes], StoredFile | None]] | None = None
    ) -> bytes:
        """A whole small object, verified against the checksum that the store keeps.

        The store has no checksum of objects that another tool wrote, for example into a copied bucket. `described_by`
        is the name of an object that describes this one, and how to extract the size and checksum from it.
        Errors  RemoteStorageError, not retriable, if neither checksum confirms the object
        """
        deadline = self.client.deadline(f"reading {name}")
        is_another = False

        def read() -> bytes:
            nonlocal is_another
            is_another = False
            data, checksum = self._whole(name, deadline)
            if checksum is None and described_by is not None:
                known = self._known(*described_by, deadline)
                if known == StoredFile(len(data), crc32c(data)):
                    return data
                is_another = True
                raise self.client.unsure(deadline, f"{len(data)} bytes without a checksum, expected {known}")
            if checksum is not None and checksum != checksum_text(crc32c(data)):
                raise self.client.unsure(deadline, f"{len(data)} bytes that do not fit their checksum {checksum}")
            return data

        try:
            return self.client.attempt(deadline, read)
        except RetriableRemoteStorageError as error:
            if is_another:
                raise RemoteStorageError(str(error)) from None
            raise

    def _known(self, name: str, stored: Callable[[bytes], StoredFile | None], deadline: Deadline) -> StoredFile | None:
        """The size and checksum that another object gives, within `attempt`; None if it gives none."""
        try:
            return stored(self._whole(name, deadline)[0])
        except Refused as error:
            if error.code == "NoSuchKey":
                return None
            raise

    def _whole(self, name: str, deadline: Deadline) -> tuple[bytes, str | None]:
        """A whole object, and its checksum if the store has one; within `attempt`."""
        answer = self.client.request(deadline, "GET", self._prefix + name, headers={"x-amz-checksum-mode": "ENABLED"})
        return answer.read(deadline), answer.headers.get("x-amz-checksum-crc32c")

    def abort_uploads(self, name: str, deadline: Deadline) -> None:
        """Abort the incomplete uploads of this name."""
        full_name = self._prefix + name

        def abort() -> None:
            found = self._list(deadline, {"uploads": "", "prefix": full_name})
            for upload in found.findall("{*}Upload"):
                if _name(upload, found) == full_name:
                    query = {"uploadId": upload.findtext("{*}UploadId", "")}
                    try:
                        self.client.request(deadline, "DELETE", full_name, query=query).read(deadline)
                    except Refused as error:
                        if error.code != "NoSuchUpload":  # another process aborted it after it was listed
                            raise

        self.client.attempt(deadline, abort)

    def delete(self, names: Sequence[str], deadline: Deadline) -> None:
        """Remove at most 1000 objects; missing ones are no error."""
        root = ElementTree.Element("Delete", xmlns=_NAMESPACE)
        ElementTree.SubElement(root, "Quiet").text = "true"
        for name in names:
            ElementTree.SubElement(ElementTree.SubElement(root, "Object"), "Key").text = self._prefix + name
        body = ElementTree.tostring(root)
        digest = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()

        def delete() -> None:
            headers = {**_XML, "content-md5": digest}
            answer = self.client.request(deadline, "POST", query={"delete": ""}, headers=headers, body=body)
            for error in self.client.xml(deadline, answer.read(deadline)).findall("{*}Error"):
                code = error.findtext("{*}Code")
                if code != "NoSuchKey":
                    raise self.client.unsure(
                        deadline, f"{error.findtext('{*}Key')}: {code}: {error.findtext('{*}Message')}"
                    )

        self.client.attempt(deadline, delete)

    def listed(self) -> Iterator[StoredObject]:
        """All objects below the prefix, by name; one request per page."""
        after = ""
        while True:
            page = self._page(after, 1000, self.client.deadline("listing"))
            yield from page
            if not page:
                return
            last = self._prefix + page[-1].name
            if last <= after:
                raise RemoteStorageError(f"listing: after {after} the store lists {last} again")
            after = last

    def check(self) -> None:
        """List at most one name, to check endpoint, keys and bucket."""
        self._page("", 1, self.client.deadline("checking the store"))

    def _page(self, after: str, size: int, deadline: Deadline) -> list[StoredObject]:
        query = {"list-type": "2", "max-keys": str(size), "prefix": self._prefix}
        if after:
            query["start-after"] = after

        def ask() -> list[StoredObject]:
            try:
                found = self._list(deadline, query)
                return [self._listed(entry, found) for entry in found.findall("{*}Contents")]
            except ValueError as error:
                raise self.client.unsure(deadline, f"a list with {error}") from None

        return self.client.attempt(deadline, ask)

    def _listed(self, entry: ElementTree.Element, page: ElementTree.Element) -> StoredObject:
        modified = datetime.fromisoformat(entry.findtext("{*}LastModified", ""))
        name, size = _name(entry, page).removeprefix(self._prefix), int(entry.findtext("{*}Size", ""))
        return stored_object(name, size, int(modified.timestamp() * 1000))

    def _list(self, deadline: Deadline, query: Mapping[str, str]) -> ElementTree.Element:
        """One page of a list, within `attempt`; names in it are encoded, because XML has no control characters."""
        answer = self.client.request(deadline, "GET", query={"delimiter": "", "encoding-type": "url", **query})
        return self.client.xml(deadline, answer.read(deadline))

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
        self._id: str = client.attempt(deadline, self._begin)

    def _begin(self) -> str:
        headers = {**_CONTENT, "x-amz-checksum-algorithm": "CRC32C"}
        answer = self._client.request(self._deadline, "POST", self._name, query={"uploads": ""}, headers=headers)
        found = self._client.xml(self._deadline, answer.read(self._deadline)).findtext("{*}UploadId")
        if not found:
            raise self._client.unsure(self._deadline, "no id of the upload")
        return found

    def send(self, part: int) -> None:
        """Store the part with this number, one of `parts`."""
        position = part * self._part_size
        size = min(self._part_size, self._size - position)
        body = Body(self._source, position, size, sign=self._settings.sign_payload)

        def store() -> str:
            headers = {"x-amz-checksum-crc32c": checksum_text(body.crc32c)}
            query = {"partNumber": str(part + 1), "uploadId": self._id}
            answer = self._client.request(self._deadline, "PUT", self._name, query=query, headers=headers, body=body)
            answer.read(self._deadline)
            return answer.headers.get("etag", "")

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
            except (Refused, *TRANSPORT_ERRORS) as error:
                failure = error
            try:
                self._client.expect(self._name, wanted, self._deadline)
            except Unsure:
                if failure is None:
                    raise
                raise failure from None

        self._client.attempt(self._deadline, complete)

    def _ask_to_complete(self) -> None:
        root = ElementTree.Element("CompleteMultipartUpload", xmlns=_NAMESPACE)
        for part in self.parts:
            etag, checksum = self._sent[part]
            entry = ElementTree.SubElement(root, "Part")
            ElementTree.SubElement(entry, "PartNumber").text = str(part + 1)
            ElementTree.SubElement(entry, "ETag").text = etag
            ElementTree.SubElement(entry, "ChecksumCRC32C").text = checksum_text(checksum)
        query, body = {"uploadId": self._id}, ElementTree.tostring(root)
        answer = self._client.request(self._deadline, "POST", self._name, query=query, headers=_XML, body=body)
        answer.read(self._deadline)


def _name(entry: ElementTree.Element, page: ElementTree.Element) -> str:
    """The name of an entry of a page. A store that does not encode names does not announce an encoding."""
    name = entry.findtext("{*}Key", "")
    return unquote_plus(name) if page.findtext("{*}EncodingType") == "url" else name


class RangeStream(RangeReader):
    """A range of an object as a stream. If the connection breaks, the rest is requested again.

    Errors  RemoteStorageError from every read
    """

    def __init__(self, client: Client, name: str, span: tuple[int, int], size: int) -> None:
        super().__init__(span[0], span[1] + 1)
        self._client, self._name, self._size = client, name, size
        self._deadline = client.deadline(f"reading {name}", size=span[1] - span[0] + 1)
        self._answer: Answer | None = None
        self._answer = client.attempt(self._deadline, self._ask)

    def _fill(self, view: memoryview) -> None:
        start, end = self._position, self._position + len(view)
        while self._position < end:
            self._client.attempt(self._deadline, lambda: self._read_on(end, view[self._position - start :]))

    def _read_on(self, end: int, view: memoryview) -> None:
        """Read up to `end`, or as far as possible. Only a request that returned no bytes counts as failed."""
        answer = self._answer or self._ask()
        self._answer = None
        begin = self._position
        try:
            while self._position < end:
                received = answer.receive_into(view[self._position - begin :], self._deadline)
                if not received:
                    raise self._client.unsure(self._deadline, f"ended {self._end - self._position} bytes early")
                self._position += received
        except (Unsure, *TRANSPORT_ERRORS):
            answer.discard()
            if self._position == begin:
                raise
            return
        except BaseException:
            answer.discard()
            raise
        self._answer = answer

    def _ask(self) -> Answer:
        """Request the rest of the range, within `attempt`."""
        asked = f"bytes={self._position}-{self._end - 1}"
        answer = self._client.request(self._deadline, "GET", self._name, headers={"range": asked})
        content_range = answer.headers.get("content-range", "")
        wanted = f"bytes {self._position}-{self._end - 1}/{self._size}"
        if (content_range, answer.left_bytes) == (wanted, self._end - self._position):
            return answer
        answer.discard()
        whole = content_range.rpartition("/")[2]
        if whole.isdecimal() and int(whole) != self._size:
            raise RemoteObjectDamaged(f"{self._deadline.what}: the object has {whole} bytes and not {self._size}")
        raise self._client.unsure(
            self._deadline, f"asked for {asked}, answered {answer.status} {content_range!r}, {answer.left_bytes} bytes"
        )

    def close(self) -> None:
        if self._answer is not None:
            self._answer.discard()
            self._answer = None
        super().close()

"""Malformed frames, by what is wrong with them, and frames with additions of newer clients (W1 to W4)."""

from __future__ import annotations

import struct

from compat.oracle.schema import framed, request_header, uvarint

MIB = 1 << 20


def length(size: int) -> bytes:
    """A length field."""
    return struct.pack(">i", size)


LENGTHS = {
    "a length of minus one": length(-1),
    "a length of the least integer": length(-(2**31)),
    "a length of one byte above socket.request.max.bytes": length(100 * MIB + 1) + b"x" * 100,
    "a length of 2 GB": length(2**31 - 1) + b"x" * 100,
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n",
    "a TLS hello": bytes.fromhex("160301020001000000"),
    "an SSH banner": b"SSH-2.0-OpenSSH_9.2\r\n",
}
HEADERS = {
    "an empty frame": length(0),
    "a frame of one byte": framed(b"\x00"),
    "a header without a correlation id": framed(struct.pack(">hh", 18, 0)),
    "a header without a client id": framed(struct.pack(">hhi", 18, 0, 1)),
    "a client id that is cut": framed(struct.pack(">hhih", 18, 0, 1, 10) + b"short"),
    "a flexible header without tags": framed(struct.pack(">hhih", 18, 3, 1, -1)),
}
UNKNOWN_KEYS = (-1, 4, 5, 6, 7, 52, 56, 62, 200, 32767)
UNKNOWN_VERSIONS = (
    (0, 0), (0, 1), (0, 2), (0, 14), (1, 3), (1, 19), (2, 0), (2, 12), (3, -1), (3, 14), (19, 1), (20, 0), (22, 7),
    (23, 1), (32, 0),
)  # fmt: skip


def _old_metadata(body: bytes) -> bytes:
    return framed(request_header(3, 1, 1, "c", flexible=False) + body)


def flexible_metadata(body: bytes) -> bytes:
    """A Metadata request of version 12."""
    return framed(request_header(3, 12, 1, "compat", flexible=True) + body)


def _tags(*tags: bytes) -> bytes:
    return uvarint(len(tags)) + b"".join(tags)


_METADATA_12 = b"\x01\x00\x00"  # no topics, no automatic creation, no authorized operations; then the tags
BODIES = {
    "an array of 2^31 elements": _old_metadata(length(2**31 - 1)),
    "an array longer than the frame": _old_metadata(length(5)),
    "a null topic name": _old_metadata(length(1) + struct.pack(">h", -1)),
    "a string of negative length": _old_metadata(length(1) + struct.pack(">h", -5)),
    "a string beyond the frame": _old_metadata(length(1) + struct.pack(">h", 99)),
    "a compact array of 2^32-2 elements": flexible_metadata(b"\xff\xff\xff\xff\x0f"),
    "a varint of seven bytes": flexible_metadata(b"\xff\xff\xff\xff\xff\xff\x01"),
    "a tag longer than the frame": flexible_metadata(_METADATA_12 + _tags(b"\x09\x7f")),
    "a body without its tags": flexible_metadata(_METADATA_12),
    "a header with wrong tags": framed(request_header(3, 12, 1, "c", flexible=False) + b"\xff\xff\xff\xff\xff\xff"),
}
# Kafka accepts any negative length as null, 2^32-1 tags as none, and tags in any order.
ACCEPTED_BY_KAFKA = {
    "a client id of length minus two": framed(struct.pack(">hhih", 18, 0, 1, -2)),
    "an array of length minus two": _old_metadata(length(-2)),
    "a count of 2^32-1 tags": flexible_metadata(_METADATA_12 + b"\xff\xff\xff\xff\x0f"),
    "a tag twice": flexible_metadata(_METADATA_12 + _tags(b"\x63\x00", b"\x63\x00")),
    "tags in descending order": flexible_metadata(_METADATA_12 + _tags(b"\x63\x00", b"\x05\x00")),
}
ADDITIONS = {
    "an unknown tag": flexible_metadata(_METADATA_12 + _tags(b"\x63\x02ab")),
    "two unknown tags": flexible_metadata(_METADATA_12 + _tags(b"\x05\x00", b"\x63\x02ab")),
    "bytes after the body": flexible_metadata(_METADATA_12 + _tags() + b"surplus"),
}

"""Record batches of format 2 as views over bytes: the form in which records are produced, stored and fetched.

A batch stays bytes from the producer's socket to the consumer's. The broker reads the 61-byte header, checks the CRC
and patches a few header fields in place. Record objects exist only for tools, for the broker's own logs (metadata,
groups) and in tests.

`wire.batch_header` has the layout of the header. After it come the records, compressed as one block:

    record: length varint, attributes int8, timestamp delta varlong, offset delta varint, key, value, headers
            (all varints zigzag; a length of -1 is null)

Source: KIP-98, DefaultRecordBatch and DefaultRecord of Apache Kafka 4.3.1.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from wire.batch_header import (
    CODEC_MASK,
    CONTROL_BIT,
    CRC_START,
    DELETE_HORIZON_BIT,
    FRAME_SIZE,
    HEADER,
    HEADER_SIZE,
    KNOWN_BITS,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    POSITIONS,
    TRANSACTIONAL_BIT,
    BatchHeader,
)
from wire.compression import Bytes, Codec, compress, decompress
from wire.crc32c import crc32c
from wire.errors import Malformed

NO_TIMESTAMP: Final = -1
MAX_DECOMPRESSED_BYTES: Final = 128 << 20

WritableBytes: TypeAlias = bytearray | memoryview

_MEMORYVIEW: Final = memoryview  # compiled code looks up the name of a builtin type at each use
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_UINT32: Final = struct.Struct(">I")
_INT64: Final = struct.Struct(">q")
_CODECS: Final = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)
_LEGACY_SIZES: Final = (14, 22)  # the smallest length field of a message of format 0 or 1


class LegacyMagic(Malformed):
    """A message of format 0 or 1 (before Kafka 0.11), which kbroker neither stores nor converts."""


class WideVarint(Malformed):
    """A varint of more bits than its field has."""


class Record(NamedTuple):
    """One record; offset and timestamp (ms) are absolute. Header keys are UTF-8; other bytes are kept as surrogates."""

    offset: int = -1
    timestamp: int = NO_TIMESTAMP
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class RecordBatch(BatchHeader):
    """A view of one batch in `buffer` at `position`. Only the header must be present; `is_whole` reports the rest.

    It copies nothing and checks only that the header is a possible header of format 2. Errors: Malformed (too short,
    an impossible size), LegacyMagic.
    """

    __slots__ = ("buffer", "position")

    def __init__(self, buffer: Bytes, position: int = 0) -> None:
        if len(buffer) - position < HEADER_SIZE:
            raise _too_short(buffer, position)
        super().__init__(buffer, position)
        if self.magic != MAGIC or self.batch_length < HEADER_SIZE - FRAME_SIZE:
            raise _not_format_2(self.magic, self.batch_length)
        self.buffer = buffer
        self.position = position

    @property
    def is_whole(self) -> bool:
        """Whether all of its bytes are in the buffer."""
        return self.position + self.size <= len(self.buffer)

    @property
    def data(self) -> memoryview:
        """The batch's own bytes, header included."""
        view = _view(self.buffer)
        if self.position or len(view) != self.size:
            view = view[self.position : self.position + self.size]
        if len(view) < self.size:
            raise Malformed(f"a batch of {self.size} bytes, but {len(view)} are there")
        return view

    @property
    def payload(self) -> memoryview:
        """The records' bytes, still compressed."""
        view = _view(self.buffer)[self.position + HEADER_SIZE : self.position + self.size]
        if len(view) < self.size - HEADER_SIZE:
            raise Malformed(f"a batch of {self.size} bytes, but {len(view) + HEADER_SIZE} are there")
        return view

    @property
    def codec(self) -> Codec:
        try:
            return _CODECS[self.attributes & CODEC_MASK]
        except IndexError:
            raise Malformed(f"unknown compression codec {self.attributes & CODEC_MASK}") from None

    def crc_is_valid(self) -> bool:
        end = self.position + self.size
        if end > len(self.buffer):
            return False
        return self.crc == crc32c(_view(self.buffer)[self.position + CRC_START : end])

    def records(self, *, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> Iterator[Record]:
        """Decode the records. Raises Malformed at the first invalid one, or if there are not `record_count`."""
        data = decompress(self.codec, self.payload, max_bytes=max_bytes)
        append_time = self.max_timestamp if self.is_log_append_time else None
        position = 0
        for _ in range(self.record_count):
            record, position = decode_record(data, position, self.base_offset, self.base_timestamp, append_time)
            yield record
        if position != len(data):
            raise Malformed(f"{len(data) - position} bytes after the last of {self.record_count} records")

    def __repr__(self) -> str:
        return (
            f"<RecordBatch offsets {self.base_offset}-{self.last_offset}, epoch {self.partition_leader_epoch}, "
            f"{self.record_count} records, {self.size} bytes, attributes {self.attributes:#x}>"
        )


def _view(buffer: Bytes) -> memoryview:
    return buffer if isinstance(buffer, _MEMORYVIEW) else _MEMORYVIEW(buffer)


class Batches(Iterator[RecordBatch]):
    """Iterates over the complete batches of a buffer. Never raises, and reports where and why it stopped.

    `position` is after the last batch that was yielded. At the end of the iteration, `error` is None if the buffer
    ended exactly there, else it describes the bytes at `position`. CRCs are not checked here.
    """

    __slots__ = ("buffer", "error", "position")

    def __init__(self, buffer: Bytes, position: int = 0) -> None:
        self.buffer = buffer
        self.position = position
        self.error: Malformed | None = None

    def __next__(self) -> RecordBatch:
        if self.position == len(self.buffer) or self.error is not None:
            raise StopIteration
        try:
            batch = RecordBatch(self.buffer, self.position)
            if not batch.is_whole:
                raise Malformed(f"a batch of {batch.size} bytes, but {len(self.buffer) - self.position} are there")
        except Malformed as error:
            self.error = error
            raise StopIteration from None
        self.position += batch.size
        return batch


def batches(buffer: Bytes, position: int = 0) -> Batches:
    """The complete batches of `buffer` in order; see Batches for how to find out where it stopped."""
    return Batches(buffer, position)


def set_max_timestamp(
    buffer: WritableBytes, position: int = 0, *, max_timestamp: int, is_log_append_time: bool
) -> None:
    """Patch max_timestamp (ms) and the timestamp type, then recompute the CRC.

    As in Kafka, base_timestamp stays, and this clears unused attribute bits (otherwise they are stored as sent).
    """
    (length,) = _INT32.unpack_from(buffer, position + POSITIONS["batch_length"])
    (attributes,) = _INT16.unpack_from(buffer, position + POSITIONS["attributes"])
    attributes &= KNOWN_BITS & ~LOG_APPEND_TIME_BIT
    if is_log_append_time:
        attributes |= LOG_APPEND_TIME_BIT
    _INT16.pack_into(buffer, position + POSITIONS["attributes"], attributes)
    _INT64.pack_into(buffer, position + POSITIONS["max_timestamp"], max_timestamp)
    _set_crc(memoryview(buffer)[position : position + FRAME_SIZE + length])


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    partition_leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
    log_append_time: int | None = None,
    delete_horizon_ms: int | None = None,
    last_offset_delta: int | None = None,
    base_timestamp: int | None = None,
    max_timestamp: int | None = None,
    record_count: int | None = None,
) -> bytes:
    """A batch with a correct CRC, as a Java producer builds it.

    A record's offset of -1 means one more than the previous offset. base_timestamp defaults to the first record's
    timestamp and max_timestamp to the greatest. `log_append_time` (ms) sets attribute bit 3. Tests can pass wrong
    values for the fields that default to None.
    """
    body = bytearray()
    delta = -1
    latest = NO_TIMESTAMP
    count = 0
    base = base_timestamp if delete_horizon_ms is None else delete_horizon_ms
    for record in records:
        base = record.timestamp if base is None else base
        delta = delta + 1 if record.offset < 0 else record.offset - base_offset
        latest = max(latest, record.timestamp)
        encode_record(body, record, offset_delta=delta, timestamp_delta=record.timestamp - base)
        count += 1
    attributes = (
        (LOG_APPEND_TIME_BIT if log_append_time is not None else 0)
        | (TRANSACTIONAL_BIT if is_transactional else 0)
        | (CONTROL_BIT if is_control else 0)
        | (DELETE_HORIZON_BIT if delete_horizon_ms is not None else 0)
    )
    if log_append_time is not None:
        latest = log_append_time
    return batch_of_body(
        body, count if record_count is None else record_count, base_offset=base_offset,
        base_timestamp=NO_TIMESTAMP if base is None else base,
        max_timestamp=latest if max_timestamp is None else max_timestamp,
        last_offset_delta=delta if last_offset_delta is None else last_offset_delta, codec=codec, level=level,
        attributes=attributes, partition_leader_epoch=partition_leader_epoch, producer_id=producer_id,
        producer_epoch=producer_epoch, base_sequence=base_sequence,
    )  # fmt: skip


def batch_of_body(
    body: Bytes,
    record_count: int,
    *,
    base_timestamp: int,
    max_timestamp: int,
    base_offset: int = 0,
    last_offset_delta: int | None = None,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    attributes: int = 0,
    partition_leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
) -> bytes:
    """A batch of encoded records, with a correct CRC; `attributes` has the bits other than the codec."""
    payload = body if codec is Codec.NONE else compress(codec, body, level)
    batch = bytearray(HEADER_SIZE)
    HEADER.pack_into(
        batch,
        0,
        base_offset,
        HEADER_SIZE - FRAME_SIZE + len(payload),
        partition_leader_epoch,
        MAGIC,
        0,
        attributes | codec,
        record_count - 1 if last_offset_delta is None else last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    batch += payload
    _set_crc(batch)
    return bytes(batch)


def with_payload(batch: RecordBatch, payload: Bytes, codec: int) -> bytearray:
    """The batch with other bytes of records, which are compressed with this codec (bits 0-2 of the attributes)."""
    data = bytearray(batch.data[:HEADER_SIZE])
    _INT32.pack_into(data, POSITIONS["batch_length"], HEADER_SIZE - FRAME_SIZE + len(payload))
    _INT16.pack_into(data, POSITIONS["attributes"], batch.attributes & ~CODEC_MASK | codec)
    data += payload
    _set_crc(data)
    return data


def _set_crc(batch: WritableBytes) -> None:
    _UINT32.pack_into(batch, POSITIONS["crc"], crc32c(memoryview(batch)[CRC_START:]))


def encode_record(body: bytearray, record: Record, *, offset_delta: int, timestamp_delta: int) -> None:
    """Append one encoded record to `body`."""
    inner = bytearray(1)  # attributes: no bit is in use
    put_varint(inner, timestamp_delta)
    put_varint(inner, offset_delta)
    put_bytes(inner, record.key)
    put_bytes(inner, record.value)
    put_headers(inner, record.headers)
    put_varint(body, len(inner))
    body += inner


def put_headers(into: bytearray, headers: Sequence[tuple[str, bytes | None]]) -> None:
    """Append encoded headers."""
    put_varint(into, len(headers))
    for name, value in headers:
        put_bytes(into, name.encode("utf-8", "surrogateescape"))
        put_bytes(into, value)


def put_varint(into: bytearray, value: int) -> None:
    """Append a zigzag varint."""
    value = value << 1 if value >= 0 else ~(value << 1)
    while value > 0x7F:
        into.append(value & 0x7F | 0x80)
        value >>= 7
    into.append(value)


def put_bytes(into: bytearray, data: bytes | None) -> None:
    """Append a length and these bytes; -1 for None."""
    if data is None:
        into.append(1)
    else:
        put_varint(into, len(data))
        into += data


def read_varint(data: Bytes, position: int, max_bits: int = 32) -> tuple[int, int]:
    """A zigzag varint and the position after it. Raises Malformed if it is cut or wider than `max_bits` (32 or 64)."""
    try:
        value = data[position]
        if value > 0x7F:
            value, position = read_zigzag(data, position, max_bits)
        else:
            position += 1
    except IndexError:
        raise Malformed("a varint is cut off") from None
    return (value >> 1) ^ -(value & 1), position


def read_zigzag(data: Bytes, position: int, max_bits: int = 32) -> tuple[int, int]:
    """Like read_varint, but the value stays zigzag, so it is never negative, and a cut varint raises IndexError."""
    value = shift = 0
    while shift < max_bits:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte <= 0x7F:
            if value >> max_bits:
                break
            return value, position
        shift += 7
    raise WideVarint(f"a varint of more than {max_bits} bits")


def _read_bytes(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    size, position = read_varint(data, position)
    if size < 0:
        if size != -1:
            raise Malformed(f"a length of {size}")
        return None, position
    if size > end - position:
        raise Malformed(f"a length of {size}, but {end - position} bytes are left")
    return data[position : position + size], position + size


def _decode_common(
    d: bytes, p: int, base_offset: int, base_timestamp: int, append_time: int | None
) -> tuple[Record, int] | None:
    """Twice as fast as the rule, and only for valid records without headers, negative deltas and long varints.

    The position only grows, so that it is the record's end only if every length is right.
    """
    b = d[p]
    p += 1
    if b > 0x7F:
        c = d[p]
        if c > 0x7F:
            return None
        b += (c - 1) << 7
        p += 1
    end = p + (b >> 1)
    t = d[p + 1]
    p += 2
    if t > 0x7F:
        c = d[p]
        if c > 0x7F:
            return None
        t += (c - 1) << 7
        p += 1
    o = d[p]
    p += 1
    if o > 0x7F:
        c = d[p]
        if c > 0x7F:
            o, p = read_zigzag(d, p - 1)
        else:
            o += (c - 1) << 7
            p += 1
    k = d[p]
    p += 1
    key: bytes | None = None
    if k != 1:
        if k > 0x7F:
            return None
        key = d[p : p + (k >> 1)]
        p += k >> 1
    v = d[p]
    p += 1
    value: bytes | None = None
    if v != 1:
        if v > 0x7F:
            c = d[p]
            if c > 0x7F:
                return None
            v += (c - 1) << 7
            p += 1
        value = d[p : p + (v >> 1)]
        p += v >> 1
    if p + 1 != end or d[p] or (b | t | o) & 1 or (k & 1 and k != 1) or (v & 1 and v != 1):
        return None
    timestamp = base_timestamp + (t >> 1) if append_time is None else append_time
    return Record(base_offset + (o >> 1), timestamp, key, value), end


def decode_record(
    data: bytes, position: int, base_offset: int, base_timestamp: int, append_time: int | None
) -> tuple[Record, int]:
    """The record at `position`, and the position after it. Errors: Malformed."""
    try:
        common = _decode_common(data, position, base_offset, base_timestamp, append_time)
    except IndexError:
        common = None
    if common is not None:
        return common
    length, position = read_varint(data, position)
    end = position + length
    if length < 0 or end > len(data):
        raise Malformed(f"a record of {length} bytes, but {len(data) - position} are left")
    timestamp_delta, position = read_varint(data, position + 1, 64)
    offset_delta, position = read_varint(data, position)
    key, position = _read_bytes(data, position, end)
    value, position = _read_bytes(data, position, end)
    header_count, position = read_varint(data, position)
    headers: tuple[tuple[str, bytes | None], ...] = ()
    if header_count:
        # A header takes at least two bytes, so a larger count is refused before the loop (W7).
        if not 0 <= header_count * 2 <= end - position:
            raise Malformed(f"{header_count} headers in {end - position} bytes")
        found = []
        for _ in range(header_count):
            name, position = _read_bytes(data, position, end)
            if name is None:
                raise Malformed("a header without a name")
            header_value, position = _read_bytes(data, position, end)
            found.append((name.decode("utf-8", "surrogateescape"), header_value))
        headers = tuple(found)
    if position != end:
        raise Malformed(f"a record of {length} bytes holds {length + position - end}")
    timestamp = base_timestamp + timestamp_delta if append_time is None else append_time
    return Record(base_offset + offset_delta, timestamp, key, value, headers), end


def _too_short(buffer: Bytes, position: int) -> Malformed:
    left = len(buffer) - position
    if left > 16 and buffer[position + 16] in (0, 1):
        (length,) = _INT32.unpack_from(buffer, position + POSITIONS["batch_length"])
        return _not_format_2(buffer[position + 16], length)
    return Malformed(f"{left} bytes are too few for a batch header of {HEADER_SIZE}")


def _not_format_2(magic: int, length: int) -> Malformed:
    # Zeros (the unwritten tail of a file) look like format 0 with length 0, so the length must be possible for format
    # 0.
    if magic in (0, 1) and length >= _LEGACY_SIZES[magic]:
        return LegacyMagic(f"a message of format {magic}; only format 2 (Kafka 0.11 and later) is supported")
    if magic != MAGIC:
        return Malformed(f"unknown batch format {magic}")
    return Malformed(f"a batch length of {length} is smaller than a header")

"""Checks every record of a batch without building objects: its framing, and the offset deltas 0, 1, 2, ...

One wrong length or offset makes every consumer of the partition fail at that place forever, so every record is checked.
`_walk_each` is the rule, record by record, at 0.5-1 us each. wire.record_columns proves most records in bulk and leaves
the others to it. Harmless irregularities are accepted, as in Kafka: a record's attributes, varints that are longer than
necessary, header names that are not UTF-8.

Source: DefaultRecord.readFrom of Apache Kafka 4.3.1; figures in tests/bench/bench_validation.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from mypy_extensions import i64

from wire.compression import MAX_WORKING_BYTES, PIECE_BYTES
from wire.errors import Malformed
from wire.record_batch import WideVarint, read_varint, read_zigzag
from wire.record_columns import AT_LEAST, AT_ONCE, FEW, Proof, prove_alike

_MAX_FAILURES: Final = 2  # after this many failed attempts in one batch its records count as dissimilar
_WIDEST: Final = 10  # bytes of a 64-bit varint
_NARROW_HEADER_BYTES: Final = 130  # of a header whose lengths take one byte each
LEAST_RECORD_BYTES: Final = 7  # one byte each for length, attributes, two deltas, two lengths, number of headers


class BadRecord(Malformed):
    """The record at `index` of its batch is not well-formed, so consumers could not read past it."""

    def __init__(self, index: int, message: str) -> None:
        super().__init__(f"record {index}: {message}")
        self.index = index


class RecordWalk:
    """The results so far of a walk over `count` records.

    `feed` takes the records' bytes in one piece or several. Afterwards min_delta and max_delta bound the timestamp
    deltas (ms; both 0 without records), and has_null_key reports whether a record had no key.
    """

    __slots__ = ("count", "failures", "has_null_key", "index", "max_delta", "min_delta")

    def __init__(self, count: int) -> None:
        self.count = count
        self.index = 0
        self.min_delta = 1 << 64
        self.max_delta = -1 << 64
        self.has_null_key = False
        self.failures = 0

    def feed(self, data: bytes, *, is_last: bool = True) -> int:
        """Walk the complete records at the start of `data`; returns how many bytes they take.

        The caller passes the rest, a record that continues in the next piece, again in front of that piece. Raises
        BadRecord; with `is_last` also for a record that is cut off or missing, and Malformed for bytes after the last
        one.
        """
        count = self.count
        position = 0
        while self.index < count:
            before = self.index
            if count - before >= AT_LEAST and self.failures < _MAX_FAILURES:
                proof = prove_alike(data, position, before, count - before)
                if proof is not None:
                    position = self._note(proof)
                    continue
                self.failures += before >= FEW
            stop = min(count, FEW if before < FEW else before + AT_ONCE)
            position = self._walk_each(data, position, stop)
            if self.index < stop:
                break
        if is_last:
            if self.index < count:
                raise BadRecord(self.index, "it is cut off" if position < len(data) else f"{count} were announced")
            if position < len(data):
                raise Malformed(f"{len(data) - position} bytes after the last of {count} records")
        return position

    def _walk_each(self, d: bytes, p: int, stop: int) -> int:
        """The rule, record by record; stops at index `stop` or before a record that is cut off.

        Varints of one and two bytes are decoded inline, wider ones by `read_zigzag`. No length is negative, so the
        position only grows, and one comparison with the record's end detects every wrong inner length.
        """
        size = len(d)
        seen_t = -1
        low, high = self.min_delta, self.max_delta
        index = self.index
        try:
            for index in range(self.index, stop):
                start = p
                try:
                    b = d[p]
                    p += 1
                    if b > 0x7F:
                        c = d[p]
                        if c > 0x7F:
                            b, p = read_zigzag(d, start)
                        else:
                            b += (c - 1) << 7
                            p += 1
                except IndexError:  # the length itself is cut off
                    self.index = index
                    return start
                if b & 1:
                    raise BadRecord(index, "a negative length")
                end = p + (b >> 1)
                if end > size:
                    self.index = index
                    return start
                t = d[p + 1]
                p += 2  # attributes (no bit is in use) and the first byte of the timestamp delta
                if t > 0x7F:
                    c = d[p]
                    if c > 0x7F:
                        t, p = read_zigzag(d, p - 1, 64)
                    else:
                        t += (c - 1) << 7
                        p += 1
                if t != seen_t:
                    seen_t = t
                    delta = (t >> 1) ^ -(t & 1)
                    if delta > high:  # noqa: PLR1730 - a call of max() here takes a tenth of the whole walk
                        high = delta
                    if delta < low:  # noqa: PLR1730
                        low = delta
                b = d[p]
                p += 1
                if b > 0x7F:
                    c = d[p]
                    if c > 0x7F:
                        b, p = read_zigzag(d, p - 1)
                    else:
                        b += (c - 1) << 7
                        p += 1
                if b != index << 1:
                    raise BadRecord(index, f"its offset delta is {(b >> 1) ^ -(b & 1)}")
                b = d[p]
                p += 1
                if b == 1:
                    self.has_null_key = True
                else:
                    if b > 0x7F:
                        b, p = read_zigzag(d, p - 1)
                    if b & 1:
                        raise BadRecord(index, "a negative key length")
                    p += b >> 1
                b = d[p]
                p += 1
                if b > 0x7F:
                    c = d[p]
                    if c > 0x7F:
                        b, p = read_zigzag(d, p - 1)
                    else:
                        b += (c - 1) << 7
                        p += 1
                if not b & 1:
                    p += b >> 1
                elif b != 1:
                    raise BadRecord(index, "a negative value length")
                if d[p]:
                    p = _walk_headers(d, p, end, index)
                else:
                    p += 1
                if p != end:
                    raise BadRecord(index, f"its length and its fields differ by {p - end} bytes")
        except IndexError:
            raise BadRecord(index, "a length leads out of the batch") from None
        except WideVarint:
            raise BadRecord(index, "a varint is too wide") from None
        finally:
            self.min_delta, self.max_delta = low, high
        self.index = stop
        return p

    def _note(self, proof: Proof) -> int:
        self.index += proof.total
        self.min_delta = min(self.min_delta, proof.min_delta)
        self.max_delta = max(self.max_delta, proof.max_delta)
        self.has_null_key |= proof.has_null_key
        return proof.position


def _walk_headers(d: bytes, p: int, end: int, index: int) -> int:
    """The position after the headers whose count is at `p`."""
    count, p = read_zigzag(d, p)
    # A header takes at least two bytes: a larger count is refused before the loop.
    if count & 1 or count > end - p:
        raise BadRecord(index, "an impossible number of headers")
    for _ in range(count >> 1):
        b = d[p]
        p += 1
        if b > 0x7F:
            b, p = read_zigzag(d, p - 1)
        if b & 1:
            raise BadRecord(index, "a header without a name")
        p += b >> 1
        b = d[p]
        p += 1
        if b > 0x7F:
            b, p = read_zigzag(d, p - 1)
        if not b & 1:
            p += b >> 1
        elif b != 1:
            raise BadRecord(index, "a negative header length")
    return p


class _LongRecord:
    """A record that is longer than a piece: read piece by piece, and not kept.

    Units  left counts its unread bytes; they continue at position `at` of the piece `data`
    """

    __slots__ = ("_index", "_pieces", "at", "data", "left")

    def __init__(self, index: int, size: int, data: bytes, at: int, pieces: Iterator[bytes]) -> None:
        self._index = index
        self._pieces = pieces
        self.data, self.at, self.left = data, at, size

    def skip(self, size: int) -> None:
        """Skip bytes of it."""
        if size > self.left:
            raise BadRecord(self._index, "a length leads out of the record")
        self.left -= size
        while size > len(self.data) - self.at:
            size -= len(self.data) - self.at
            self._read_on()
        self.at += size

    def varint(self, bits: int = 32) -> int:
        """The zigzag value of its next varint."""
        read = bytearray()
        while len(read) <= _WIDEST and (not read or read[-1] > 0x7F):
            while self.at == len(self.data):
                self._read_on()
            read.append(self.data[self.at])
            self.skip(1)
        return read_zigzag(read, 0, bits)[0]

    def field(self, why: str, *, may_be_null: bool = True) -> bool:
        """Skip a length and that many bytes; returns whether it is not null."""
        length = self.varint()
        if length & 1:
            if length == 1 and may_be_null:
                return False
            raise BadRecord(self._index, why)
        self.skip(length >> 1)
        return True

    def headers(self, most: int) -> int:
        """Skip up to `most` headers of the current piece whose lengths take one byte each; returns their number."""
        data, p = self.data, self.at
        end = min(len(data), p + self.left) - _NARROW_HEADER_BYTES
        count = 0
        while count < most and p < end:
            name = data[p]
            value = data[p + 1 + (name >> 1)]
            if name & 0x81 or (value & 0x81 and value != 1):
                break
            p += 2 + (name >> 1) + (value >> 1)
            count += 1
        self.skip(p - self.at)
        return count

    def _read_on(self) -> None:
        for piece in self._pieces:
            self.data, self.at = piece, 0
            return
        raise BadRecord(self._index, "it is cut off")


def _walk_long(walk: RecordWalk, size: int, data: bytes, at: int, pieces: Iterator[bytes]) -> bytes:
    """The rule for one record, whose `size` bytes after its length begin at `at` of `data`; returns the rest."""
    index = walk.index
    record = _LongRecord(index, size, data, at, pieces)
    try:
        record.skip(1)  # attributes
        zigzag = record.varint(64)
        if (offset := record.varint()) != index << 1:
            raise BadRecord(index, f"its offset delta is {(offset >> 1) ^ -(offset & 1)}")
        walk.has_null_key |= not record.field("a negative key length")
        record.field("a negative value length")
        headers = record.varint()
        if headers & 1 or headers > record.left:
            raise BadRecord(index, "an impossible number of headers")
        headers >>= 1
        while headers and (headers := headers - record.headers(headers)):
            record.field("a header without a name", may_be_null=False)
            record.field("a negative header length")
            headers -= 1
    except WideVarint:
        raise BadRecord(index, "a varint is too wide") from None
    if record.left:
        raise BadRecord(index, f"its length and its fields differ by {-record.left} bytes")
    delta = (zigzag >> 1) ^ -(zigzag & 1)
    walk.min_delta, walk.max_delta = min(walk.min_delta, delta), max(walk.max_delta, delta)
    walk.index = index + 1
    return record.data[record.at :]


def _beginning(data: bytes, index: int) -> tuple[int, int]:
    """The start of a record's bytes after its length, and their number; (0, 0) if the length is cut off."""
    try:
        length, behind = read_zigzag(data, 0)
    except IndexError:
        return 0, 0
    if length >> 1 > MAX_WORKING_BYTES:
        raise BadRecord(index, f"its {length >> 1} bytes are more than {MAX_WORKING_BYTES}")
    return behind, length >> 1


def walk_pieces(walk: RecordWalk, pieces: Iterable[bytes]) -> None:
    """Walk all the records of a batch that comes in pieces, holding at most two pieces.

    Raises Malformed as RecordWalk.feed does with `is_last`, and for a record of more than MAX_WORKING_BYTES.
    """
    pieces = iter(pieces)
    parts: list[bytes] = []
    lacking = 0
    for piece in pieces:
        parts.append(piece)
        lacking -= len(piece)
        if lacking > 0:
            continue
        rest = b"".join(parts) if len(parts) > 1 else piece
        while rest:
            rest = rest[walk.feed(rest, is_last=False) :]
            if rest and walk.index == walk.count:
                raise Malformed(f"bytes after the last of {walk.count} records")
            behind, size = _beginning(rest, walk.index)
            lacking = behind + size - len(rest)
            if size <= PIECE_BYTES:
                break
            rest = _walk_long(walk, size, rest, behind, pieces)
        parts = [rest] if rest else []
    walk.feed(b"".join(parts), is_last=True)


def shallow_records(pieces: Iterable[bytes], count: int) -> Iterator[tuple[int, bool]]:
    """Timestamp delta (ms) and "has a key" of each of `count` records that a walk has found well-formed."""
    rest = b""
    index = beyond = 0  # bytes of the last record that are still to come
    for piece in pieces:
        if beyond >= len(piece):
            beyond -= len(piece)
            continue
        data = rest + piece[beyond:]
        start = beyond = 0
        while index < count:
            try:
                length, position = read_varint(data, start)
                end = position + length
                delta, position = read_varint(data, position + 1, 64)
                _, position = read_varint(data, position)
                key_size, position = read_varint(data, position)
            except Malformed:
                break  # the next piece contains the rest of these
            yield delta, key_size >= 0
            index += 1
            start = min(end, len(data))
            beyond = end - start
        rest = data[start:]


def find_records(data: bytes, position: i64, end: i64, count: i64, starts: list[int]) -> None:
    """Append the position of each of the `count` records in data[position:end] to `starts`. Reads only their lengths.

    Errors  Malformed unless the last one ends exactly at `end`; `starts` is then unchanged
    Bound   (end - position) / LEAST_RECORD_BYTES records, whatever `count` is
    """
    before = len(starts)
    if not 0 <= count * LEAST_RECORD_BYTES <= end - position:
        raise Malformed(f"{count} records in {end - position} bytes")
    try:
        for _ in range(count):
            starts.append(position)
            first: i64 = data[position]
            if first < 128:
                position += 1 + (first >> 1)
                continue
            second: i64 = data[position + 1]
            if second < 128:
                position += 2 + ((first & 127 | second << 7) >> 1)
                continue
            size, position = _long_length(data, position)
            position += size
    except IndexError:
        position = -1
    if position != end:
        del starts[before:]
        raise Malformed(f"{count} records do not end where their batch does")


def _long_length(data: bytes, position: i64) -> tuple[i64, i64]:
    """A length of three or more bytes, and the position after it. Negative ones are detected later."""
    value: i64 = 0
    shift: i64 = 0
    while shift <= 28:
        byte: i64 = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value >> 1, position
        shift += 7
    raise IndexError

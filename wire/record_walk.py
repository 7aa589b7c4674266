"""Checks every record of a batch without building one: is each framed rightly, and are the offset deltas 0, 1, 2, ...?

One wrong length, or an offset out of turn, makes every consumer of the partition fail at that place for ever, so no
record is left unchecked. `_walk_each` is the rule, record by record, at 0.5-1 us each; wire.record_columns proves most
records at once and leaves to it what it cannot prove. What may be odd without harm is let through as in Kafka: a
record's attributes, varints longer than they need to be, header names that are not UTF-8.

Source: DefaultRecord.readFrom of Apache Kafka 4.3.1; figures in tests/bench/bench_validation.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from wire.compression import MAX_WORKING_BYTES
from wire.errors import Malformed
from wire.record_batch import read_varint
from wire.record_columns import AT_LEAST, AT_ONCE, Proof, prove_alike

_MAX_FAILURES: Final = 2  # after so many in one batch its records are taken not to be alike
_FEW: Final = 64  # records whose offset deltas take one byte: too few to be worth columns if their sizes differ


class BadRecord(Malformed):
    """The record at `index` of its batch is not well-formed, so no consumer could read past it."""

    def __init__(self, index: int, message: str) -> None:
        super().__init__(f"record {index}: {message}")
        self.index = index


class RecordWalk:
    """What a walk over `count` records has seen so far.

    `feed` the records' bytes, in one piece or in several. Afterwards min_delta and max_delta bound the timestamp
    deltas (ms; both 0 of no record) and has_null_key says whether a record had no key.
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
        """Walk the whole records at the start of `data`; returns how many bytes they take.

        The rest, a record that goes on in the next piece, has to come again in front of that one. Raises BadRecord;
        with `is_last` also for a record that is cut off or missing, and Malformed for bytes behind the last one.
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
                self.failures += before >= _FEW
            stop = min(count, _FEW if before < _FEW else before + AT_ONCE)
            position = self._walk_each(data, position, stop)
            if self.index < stop:
                break
        if is_last:
            if self.index < count:
                raise BadRecord(self.index, "it is cut off" if position < len(data) else f"{count} were announced")
            if position < len(data):
                raise Malformed(f"{len(data) - position} bytes behind the last of {count} records")
        return position

    def _walk_each(self, d: bytes, p: int, stop: int) -> int:
        """The rule, record by record; stops at index `stop` or in front of a record that is cut off.

        Varints of one and two bytes are decoded in line, wider ones by `_wide`. No length is negative, so the
        position only grows, and one comparison with the record's end finds every inner length that lies.
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
                            b, p = _wide(d, start)
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
                p += 2  # attributes, of which no bit is in use, and the first byte of the timestamp delta
                if t > 0x7F:
                    c = d[p]
                    if c > 0x7F:
                        t, p = _wide(d, p - 1, 64)
                    else:
                        t += (c - 1) << 7
                        p += 1
                if t != seen_t:
                    seen_t = t
                    delta = (t >> 1) ^ -(t & 1)
                    if delta > high:  # noqa: PLR1730 - a call of max() here is a tenth of the whole walk
                        high = delta
                    if delta < low:  # noqa: PLR1730
                        low = delta
                b = d[p]
                p += 1
                if b > 0x7F:
                    c = d[p]
                    if c > 0x7F:
                        b, p = _wide(d, p - 1)
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
                        b, p = _wide(d, p - 1)
                    if b & 1:
                        raise BadRecord(index, "a negative key length")
                    p += b >> 1
                b = d[p]
                p += 1
                if b > 0x7F:
                    c = d[p]
                    if c > 0x7F:
                        b, p = _wide(d, p - 1)
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
        except _Overlong:
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


class _Overlong(Malformed):
    pass


def _wide(d: bytes, p: int, bits: int = 32) -> tuple[int, int]:
    """The varint at `p` as its zigzag value (never negative) and the position behind it; at most `bits` wide."""
    value = shift = 0
    while (byte := d[p]) > 0x7F:
        value |= (byte & 0x7F) << shift
        shift += 7
        p += 1
        if shift >= bits:
            raise _Overlong
    value |= byte << shift
    if value >> bits:
        raise _Overlong
    return value, p + 1


def _walk_headers(d: bytes, p: int, end: int, index: int) -> int:
    """The position behind the headers whose count is at `p`."""
    count, p = _wide(d, p)
    # A header takes two bytes at least: a count beyond that is refused before the loop.
    if count & 1 or count > end - p:
        raise BadRecord(index, "an impossible number of headers")
    for _ in range(count >> 1):
        b = d[p]
        p += 1
        if b > 0x7F:
            b, p = _wide(d, p - 1)
        if b & 1:
            raise BadRecord(index, "a header without a name")
        p += b >> 1
        b = d[p]
        p += 1
        if b > 0x7F:
            b, p = _wide(d, p - 1)
        if not b & 1:
            p += b >> 1
        elif b != 1:
            raise BadRecord(index, "a negative header length")
    return p


class _Rest:
    """What is left of a piece: the beginning of a record, kept until the pieces that complete it are there."""

    __slots__ = ("_parts", "_size", "_wanted")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = self._wanted = 0

    def join(self, piece: bytes) -> bytes:
        """The rest and `piece` together, or nothing while the record is still not whole."""
        self._parts.append(piece)
        self._size += len(piece)
        if self._size < self._wanted:
            return b""
        data = b"".join(self._parts) if len(self._parts) > 1 else piece
        self._parts, self._size, self._wanted = [], 0, 0
        return data

    def all(self) -> bytes:
        """What is left when no piece follows."""
        return b"".join(self._parts)

    def keep(self, data: bytes, index: int) -> None:
        """Keep what begins record `index`. Raises BadRecord if the whole record would be too much to hold."""
        if not data:
            return
        try:
            length, behind = _wide(data, 0)
            self._wanted = behind + (length >> 1)
        except IndexError:
            self._wanted = len(data) + 1
        if self._wanted > MAX_WORKING_BYTES:
            raise BadRecord(index, f"its {self._wanted} bytes are more than {MAX_WORKING_BYTES}")
        self._parts, self._size = [data], len(data)


def walk_pieces(walk: RecordWalk, pieces: Iterable[bytes]) -> None:
    """Walk all the records of a batch that come in pieces, holding one piece and one record at most.

    Raises Malformed as RecordWalk.feed does with `is_last`, and for a record of more than MAX_WORKING_BYTES.
    """
    rest = _Rest()
    for piece in pieces:
        if data := rest.join(piece):
            data = data[walk.feed(data, is_last=False) :]
            if data and walk.index == walk.count:
                raise Malformed(f"bytes behind the last of {walk.count} records")
            rest.keep(data, walk.index)
    walk.feed(rest.all(), is_last=True)


def shallow_records(pieces: Iterable[bytes], count: int) -> Iterator[tuple[int, bool]]:
    """Timestamp delta (ms) and "has a key" of each of `count` records that a walk has found to be well-formed."""
    rest = _Rest()
    index = 0
    for piece in pieces:
        data = rest.join(piece)
        start = 0
        while start < len(data) and index < count:
            try:
                length, position = read_varint(data, start)
            except Malformed:
                break
            if position + length > len(data):
                break
            start = position + length
            delta, position = read_varint(data, position + 1, 64)
            _, position = read_varint(data, position)
            key_size, position = read_varint(data, position)
            yield delta, key_size >= 0
            index += 1
        rest.keep(data[start:], index)

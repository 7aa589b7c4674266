"""Parses kcat's output into samples."""

from __future__ import annotations

from compat.clients.samples import Sample

# partition, offset, timestamp, the lengths of key and value (-1: null), key and value unchanged, then the headers.
FORMAT = r"%p %o %T %K %S %k%s%h\n"


def parse(printed: bytes, *, headers: bool = True) -> dict[int, list[Sample]]:
    """Records of each partition, in the printed order; their offsets must be consecutive from the first.

    Headers are printed as `name=value,name=value`, so they can be parsed only if they contain neither of the two
    characters.
    """
    found: dict[int, list[Sample]] = {}
    following: dict[int, int] = {}
    position = 0
    while position < len(printed):
        fields = printed[position : position + 200].split(b" ", 5)[:5]
        partition, offset, timestamp, key_size, value_size = map(int, fields)
        assert offset == following.get(partition, offset)
        following[partition] = offset + 1
        position += sum(len(field) + 1 for field in fields)
        key = None if key_size < 0 else printed[position : position + key_size]
        position += max(key_size, 0)
        value = None if value_size < 0 else printed[position : position + value_size]
        position += max(value_size, 0)
        end = printed.index(b"\n", position)
        named = printed[position:end].decode(errors="replace").split(",") if headers and end > position else []
        pairs = tuple((name, text.encode()) for name, _, text in (pair.partition("=") for pair in named))
        found.setdefault(partition, []).append(Sample(key, value, timestamp, pairs))
        position = end + 1
    return found

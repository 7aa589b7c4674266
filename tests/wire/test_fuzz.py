"""Random and mutated bytes for every class in every version decode to a message or raise Malformed, nothing else."""

from __future__ import annotations

import random

import pytest

from compat.schemas.filler import full
from tests.wire.generated import class_versions
from wire.codec import decode, encode
from wire.errors import Malformed
from wire.structs import construct_for

ROUNDS = 12


def mutate(data: bytes, chance: random.Random) -> bytes:
    """The data with a few bytes changed, a piece cut out or duplicated, or its end missing."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        at, size = chance.randrange(len(changed) + 1), chance.randrange(8)
        match chance.randrange(4):
            case 0:
                changed[at : at + 1] = bytes([chance.choice([0, 1, 127, 128, 255, chance.randrange(256)])])
            case 1:
                del changed[at : at + size]
            case 2:
                changed[at:at] = changed[at : at + size]
            case 3:
                changed[at : at + size] = chance.choice([b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80" * 5])
    return bytes(changed)


@pytest.mark.parametrize("seed", range(4))
def test_w4_bad_bytes_raise_only_malformed(seed: int) -> None:
    chance = random.Random(seed)
    refused = accepted = 0
    for cls, version in class_versions():
        good = encode(full(cls, version), version)
        for number in range(ROUNDS):
            data = chance.randbytes(chance.randrange(60)) if number % 4 == 0 else mutate(good, chance)
            try:
                message: object = decode(cls, version, data)
            except Malformed:
                refused += 1
                if number % 4 == 1:
                    with pytest.raises(Malformed):
                        construct_for(cls, version).parse(data)
            else:
                accepted += 1
                again = encode(message, version)
                assert repr(decode(cls, version, again, exact=True)) == repr(message), (cls, version, data.hex())
                if number % 4 == 1:
                    assert repr(construct_for(cls, version).parse(data)) == repr(message)
    assert refused > 1_000
    assert accepted > 500
